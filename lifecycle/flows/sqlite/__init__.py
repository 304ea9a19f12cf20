"""Flows, jobs and the outbox in one SQLite file, which processes of one machine share."""

from lifecycle.flows.sqlite.stores import SQLiteStore

__all__ = ["SQLiteStore"]
