"""Flows, jobs and the outbox in dictionaries, which last as long as the process; the others are compared with them."""

from lifecycle.flows.memory.stores import MemoryStore

__all__ = ["MemoryStore"]
