"""Checks for the statements about peers in docs/explanation/comparison.md: ``python -m tests.conformance.peers``.

Each function checks the statement in its name. Peers come from the dependency group ``bench``, and the report lists
those that are not installed. Run the checks when that page or a peer changes. They are not part of the test suite,
because they do not test our code.
"""
