"""From the description of a flow to its plan: one flat graph, of which all is checked and nothing has begun.

``compiling`` makes it, of ``steps`` (a task, or a retry in the form of one), in the order that ``orders`` finds; who
gives a step what it asks for is said by ``scopes``, which reads in ``frames`` what comes before what. Nothing here
knows that a flow is ever run.
"""

__all__: list[str] = []
