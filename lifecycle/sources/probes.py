"""`ProbeServer`: what Kubernetes and load balancers ask a program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Protocol

from lifecycle._net import check_port
from lifecycle.runtime.lifetimes import current_life
from lifecycle.runtime.mains import Auxiliary
from lifecycle.sources._http.hosts import url_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack

    from lifecycle.runtime.lifetimes import Life

__all__ = ["Check", "Exposed", "ProbeServer"]

#: Seconds for the head of a request.
_HEADER_TIMEOUT = 10.0


class Check(Protocol):
    """What ``/healthz`` names, such as a `HealthCheckSource`."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def healthy(self) -> bool | None:
        """What was found last; None before the first result."""
        ...


class Exposed(Protocol):
    """What ``/metrics`` shows, such as `PrometheusMetrics`."""

    def expose(self, accept: str, /) -> tuple[bytes, str]:
        """A text, and its type, by what the asker says that they accept."""
        ...


class ProbeServer(Auxiliary):
    """Answers probes over HTTP, for as long as a program lives; a main for `run`, best the first.

    ``/livez`` is 200 whenever the loop turns: a program that is blocked does not answer in time. ``/readyz`` is 200
    once every main and every router has started, and 503 from the moment the shutdown begins. Then everything goes on
    as before for ``drain_delay`` seconds (as far as ``exit_timeout`` allows), so that load balancers notice; only
    then do sources stop and mains end. ``/healthz`` is 200 if it is ready and every one of ``checks`` found its thing
    up the last time, and says which did not; it runs no check by itself. GET and HEAD are answered, with small JSON
    objects; ``/metrics``, where ``metrics`` is given, with what that exposes.

    As a main it is up before the next one starts, and the last to stop. A program whose other mains have ended does
    not go on for its sake. ``async with`` listens as well, inside a lifetime or without one: then it is ready at once.
    Both raise `OSError` when the address is taken or not to be had.

    Raises:
        ValueError: for a ``port`` that there cannot be, a ``drain_delay`` that is no time, and two checks of one name.
        TypeError: for what is no check, or exposes nothing.
    """

    _taken: ClassVar[str] = "listens already; make another for another port"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8081,
        *,
        checks: Iterable[Check] = (),
        drain_delay: float = 0.0,
        metrics: Exposed | None = None,
    ) -> None:
        check_port(port)
        if not 0 <= drain_delay < math.inf:
            raise ValueError(f"drain_delay={drain_delay!r} is no time; give seconds, 0 or more")
        super().__init__()
        self.name: str = f"{host}:{port}"
        self._host, self._port = host, port
        self._checks = tuple(map(_checked, checks))
        if len({check.name for check in self._checks}) < len(self._checks):
            raise ValueError(f"two checks have one name: {', '.join(sorted(check.name for check in self._checks))}")
        if metrics is not None and not callable(getattr(metrics, "expose", None)):
            raise TypeError(f"metrics={metrics!r} exposes nothing; give PrometheusMetrics(), or what has its `expose`")
        self._drain_delay = drain_delay
        self._metrics = metrics
        self._address: tuple[str, int] | None = None
        self._life: Life | None = None

    def __repr__(self) -> str:
        return f"<ProbeServer {self.url}>"

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end; before the start what was asked for."""
        return url_of("http", *(self._address or (self._host, self._port)))

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.sources._http.listener import Listener  # aiohttp is heavy
        from lifecycle.sources._http.probes import Probes

        self._life = current_life.get(None)
        listener = Listener(Probes(self._readiness, self._checks, self._metrics).answer, header_timeout=_HEADER_TIMEOUT)
        self._address = await listener.listen(self._host, self._port)
        held.push_async_callback(listener.aclose)
        held.callback(setattr, self, "_address", None)
        if self._life is not None:
            held.enter_context(self._life.draining.delayed(self._drain_delay))

    def _readiness(self) -> str:
        life = self._life
        if life is None or life.ready:
            return "ready"
        return "stopping" if life.lifetime.stopping else "starting"


def _checked(check: Check) -> Check:
    if isinstance(getattr(check, "name", None), str) and hasattr(check, "healthy"):
        return check
    raise TypeError(f"{check!r} is no check; give a HealthCheckSource, or an object with a name and `healthy`")
