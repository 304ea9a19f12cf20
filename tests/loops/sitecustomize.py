"""Event loops other than asyncio's default, for the suite and the programs that it starts.

LIFECYCLE_LOOP=uvloop replaces the default loop with uvloop's. LIFECYCLE_LOOP=eager sets `asyncio.eager_task_factory`
(Python 3.12). The suite adds this directory to PYTHONPATH, so that Python imports this module at the start of each
program.
"""

import os
import sys


def _use_uvloop() -> None:
    import asyncio

    import uvloop

    # `asyncio.Runner` calls the function of `asyncio.events`.
    asyncio.new_event_loop = asyncio.events.new_event_loop = uvloop.new_event_loop


_LOOPS = {"uvloop": _use_uvloop}

if sys.version_info >= (3, 12):

    def _start_tasks_eagerly() -> None:
        import asyncio

        initialize = asyncio.BaseEventLoop.__init__

        def initialize_eager(self: asyncio.BaseEventLoop) -> None:
            initialize(self)
            self.set_task_factory(asyncio.eager_task_factory)

        setattr(asyncio.BaseEventLoop, "__init__", initialize_eager)  # noqa: B010  # mypy rejects the assignment

    _LOOPS["eager"] = _start_tasks_eagerly

if loop := os.environ.get("LIFECYCLE_LOOP"):
    _LOOPS[loop]()
