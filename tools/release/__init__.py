"""Build and check the release: ``python -m tools.release``. Nothing is uploaded.

``contents`` defines what may be in the two files, ``environments`` installs them in clean environments, ``programs``
contains the programs that run there, and ``bill`` writes the bill of materials.
"""
