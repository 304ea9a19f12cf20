"""Build and check the release: ``python -m tools.release``. Nothing is uploaded.

``contents`` defines the files allowed in the wheel and the sdist. ``environments`` installs both in clean environments.
``programs`` contains the programs that run there, and ``bill`` writes the bill of materials.
"""
