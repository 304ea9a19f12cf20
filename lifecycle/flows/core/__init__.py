"""What decides what is done next in a flow: told what happened, it says what follows, and never waits.

No clock, no file and no ``await`` may come in here, so that a test can ask it anything. ``cores`` is the door; it keeps
a `Cell` a node (``cells``) and knows whose turn it is (``readiness``), with what (``values``), unless a decider leaves
it out (``deciders``). What ended goes to ``outcomes``, what failed on to ``resolutions``, and when nothing is left
``endings`` says what the flow has come to. All moves are made in the ledger (``ledgers``), from where they are written.
"""

__all__: list[str] = []
