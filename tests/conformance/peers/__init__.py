"""Checks of the statements about peers in docs/explanation/comparison.md: ``python -m tests.conformance.peers``.

Each function checks one statement, which is its name. Peers come from the dependency group ``bench``; peers that are
not installed are listed. Run the checks when that page or a peer changes. They are not part of the suite, since they
test none of our code.
"""
