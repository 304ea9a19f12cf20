"""`ProbeServer`: liveness, readiness, health and metrics over HTTP, for Kubernetes and load balancers."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, ClassVar, Protocol

from lifecycle._net import check_port
from lifecycle.runtime.lifetimes import current_life
from lifecycle.runtime.mains import Auxiliary
from lifecycle.sources._http.settings import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from aiohttp import web

    from lifecycle.runtime.lifetimes import Life

__all__ = ["Check", "Exposed", "ProbeServer"]

_log = logging.getLogger("lifecycle.observe")

#: Seconds for the headers of a request.
_HEADER_TIMEOUT = 10.0

_METHODS = ("GET", "HEAD")

_HEADERS = {"Server": "lifecycle", "Cache-Control": "no-store"}

_WORDS = {True: "up", False: "down", None: "unknown"}


class Check(Protocol):
    """A check that ``/healthz`` reports, such as a `HealthCheckSource`."""

    @property
    def name(self) -> str:
        """Its name in the answer."""
        ...

    @property
    def healthy(self) -> bool | None:
        """The last result; None before the first."""
        ...


class Exposed(Protocol):
    """The metrics at ``/metrics``, such as `PrometheusMetrics`."""

    def expose(self, accept: str, /) -> tuple[bytes, str]:
        """Return the metrics and their content type, for the ``Accept`` header of a request."""
        ...


class ProbeServer(Auxiliary):
    """Answers probes over HTTP, for as long as a program runs; a main for `run`, best the first.

    ``/livez`` is 200 whenever the loop turns: a program that is blocked does not answer in time. ``/readyz`` is 200
    once every main and every router has started, and 503 from the moment the shutdown begins. Then everything continues
    as before for ``drain_delay`` seconds (as far as ``exit_timeout`` allows), so that load balancers notice. Only
    then do sources stop and mains end. ``/healthz`` is 200 if the program is ready and the last result of every one of
    ``checks`` was healthy, and names those that were not; it runs no check by itself. GET and HEAD are answered, with
    small JSON objects; ``/metrics``, if ``metrics`` is given, with the text that it exposes.

    As a main it is up before the next one starts, and the last to stop. It does not keep a program running whose other
    mains have ended. ``async with`` listens as well, inside a lifetime or without one: then it is ready at once.
    Both raise `OSError` if the address is taken or does not exist.

    Raises:
        ValueError: for a ``port`` that does not exist, a ``drain_delay`` below 0, and two checks of one name.
        TypeError: for an object that is not a check, or exposes nothing.
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
            raise ValueError(f"drain_delay={drain_delay!r} must be finite and not negative; give seconds, 0 or more")
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
        self._answers: dict[str, Callable[[web.BaseRequest], web.Response]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/healthz": self._health,
            **({} if metrics is None else {"/metrics": self._exposed}),
        }

    def __repr__(self) -> str:
        return f"<ProbeServer {self.url}>"

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end; before the start the address that was given."""
        return url_of("http", *(self._address or (self._host, self._port)))

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle.sources._http.server import Listener  # aiohttp is heavy

        self._life = current_life.get(None)
        listener = Listener(self._answer, header_timeout=_HEADER_TIMEOUT)
        self._address = await listener.listen(self._host, self._port)
        held.push_async_callback(listener.aclose)
        held.callback(setattr, self, "_address", None)
        if self._life is not None:
            held.enter_context(self._life.draining.delayed(self._drain_delay))

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        from lifecycle.sources._http.server import problem

        answer = self._answers.get(request.raw_path.partition("?")[0])
        if answer is None:
            return problem(404, f"there is nothing under this path; try {', '.join(self._answers)}")
        if request.method not in _METHODS:
            return problem(405, "this method is not allowed; use GET", {"Allow": ", ".join(_METHODS)})
        return answer(request)

    def _live(self, _request: web.BaseRequest) -> web.Response:
        """Answer: that is the proof."""
        return _response(good=True, status="live")

    def _ready(self, _request: web.BaseRequest) -> web.Response:
        status = self._readiness()
        return _response(good=status == "ready", status=status)

    def _health(self, _request: web.BaseRequest) -> web.Response:
        """Answer without the messages of checks: any client may ask."""
        status = self._readiness()
        checks = {check.name: _WORDS[check.healthy] for check in self._checks}
        good = status == "ready" and all(word == "up" for word in checks.values())
        return _response(good=good, status=status, checks=checks)

    def _exposed(self, request: web.BaseRequest) -> web.Response:
        """Answer with the metrics; an error of a custom collector is only logged, since any client may ask."""
        from aiohttp import web

        from lifecycle.sources._http.server import problem

        assert self._metrics is not None, "its path is there only with metrics"
        try:
            body, content_type = self._metrics.expose(", ".join(request.headers.getall("Accept", [])))
        except Exception:  # noqa: BLE001  # whatever a collector raises, the probes beside it are answered
            _log.exception("%r could not expose its metrics", self._metrics)
            return problem(500, "the metrics are not available; the log of the program has the reason")
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": content_type})

    def _readiness(self) -> str:
        life = self._life
        if life is None or life.ready:
            return "ready"
        return "stopping" if life.lifetime.stopping else "starting"


def _response(*, good: bool, **facts: object) -> web.Response:
    from aiohttp import web

    return web.json_response(facts, status=200 if good else 503, headers=_HEADERS)


def _checked(check: Check) -> Check:
    if isinstance(getattr(check, "name", None), str) and hasattr(check, "healthy"):
        return check
    raise TypeError(f"{check!r} is not a check; give a HealthCheckSource, or an object with a name and `healthy`")
