"""Stopping a worker, or anything that stops and ends like one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lifecycle.workers.records import Exit

__all__ = ["stop_and_wait"]


class _Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...

    async def wait(self) -> Exit: ...


async def stop_and_wait(worker: _Stoppable, timeout: float | None = None) -> Exit:
    """Stop ``worker`` and return how it ended; ``timeout`` as in `BaseWorker.stop`."""
    await worker.stop(timeout)
    return await worker.wait()
