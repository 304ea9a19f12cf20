"""Work that is posted, and claimed by whoever has room: a job is a flow that somebody will carry out.

``queues`` is the door. What is stored stands in ``rows``, and ``stores`` says what a store must do with it; ``claims``
are how a job gets an owner, ``leases`` how he keeps it, and ``workers`` are those who look for jobs all the time.
"""

__all__: list[str] = []
