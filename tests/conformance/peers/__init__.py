"""Whether peers do what docs/explanation/comparison.md says of them: ``python -m tests.conformance.peers``.

A function is a statement about a peer, and its name says it. Peers come from the dependency group ``bench``; those that
are not installed are named. It is run when that page or a peer changes, and is no part of the suite: none of ours is
tested here.
"""
