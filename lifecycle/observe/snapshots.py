"""`snapshot`: a whole program at one moment.

Its records are in ``_snapshot.views``; who asks for them is in ``_snapshot.surveys``.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from lifecycle._util import program_name
from lifecycle.observe._snapshot.surveys import Survey
from lifecycle.observe._snapshot.views import ProgramView, Snapshot
from lifecycle.runtime.lifetimes import Lifetime, current_life

if TYPE_CHECKING:
    from lifecycle.runtime.lifetimes import LifetimeState

__all__ = ["lifetime_here", "snapshot", "snapshot_of"]


def snapshot(*components: object) -> Snapshot:
    """The program at this moment: what lives under the current lifetime, or just ``components``.

    Routers, workers, pools, flows, queues and inboxes are known by what they say; anything else with a ``state()`` is
    among the others. One whose ``state()`` raises is shown with its error, and the rest is as it is.

    Raises:
        LookupError: without components, outside a lifetime.
    """
    if components:
        life = current_life.get(None)
        return snapshot_of(None if life is None else life.lifetime, components)
    here = lifetime_here()
    return snapshot_of(here, here.components())


def lifetime_here() -> Lifetime:
    """The current lifetime.

    Raises:
        LookupError: outside one; the message says what else to do.
    """
    life = current_life.get(None)
    if life is None:
        raise LookupError(
            "there is no lifetime here, so nobody knows what lives; call this below run(…) or inside "
            "`async with lifetime()`, or name what to look at: snapshot(router, supervisor)"
        )
    return life.lifetime


def snapshot_of(here: Lifetime | None, components: tuple[object, ...]) -> Snapshot:
    """A snapshot of ``components``, in a program whose lifetime is ``here``."""
    now = time.time()
    survey = Survey(now)
    state: LifetimeState | None = None
    if here is not None:
        state = here.state()
    survey.take(components)
    return Snapshot(
        now,
        _program(here, now),
        state,
        tuple(survey.routers),
        tuple(survey.workers),
        tuple(survey.pools),
        tuple(survey.flows),
        tuple(survey.queues),
        tuple(survey.inboxes),
        tuple(survey.others),
        tuple(survey.errors),
    )


def _program(here: Lifetime | None, now: float) -> ProgramView:
    began = None if here is None else here.started_at
    uptime = None if began is None else max(0.0, now - began)
    return ProgramView(program_name(), os.getpid(), *_versions(), began, uptime)


@cache
def _versions() -> tuple[str, str, str]:
    """Host, Python, and this library."""
    try:
        ours = version("lifecycle-control")
    except PackageNotFoundError:
        ours = "unknown"
    return socket.gethostname(), platform.python_version(), ours
