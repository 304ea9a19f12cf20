"""The release, made and looked at from outside: ``python -m tools.release``. Nothing is uploaded.

``contents`` says what may be in the two files, ``environments`` installs them where nothing else is, ``programs`` has
what is run there, ``bill`` writes down what the release consists of.
"""
