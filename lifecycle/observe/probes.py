"""`ProbeServer`: liveness, readiness, health and metrics over HTTP, for Kubernetes and load balancers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Protocol

from lifecycle._durations import in_seconds
from lifecycle._listening import listen
from lifecycle._net import check_port, url_of
from lifecycle.observe.auxiliary import Auxiliary
from lifecycle.runtime.lifetimes import current_lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from aiohttp import web

    from lifecycle._durations import Duration
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Check", "Exposed", "ProbeServer"]

_log = logging.getLogger("lifecycle.observe")

#: How many seconds a client has to send the request headers.
_HEADER_TIMEOUT = 10.0

_METHODS = ("GET", "HEAD")

_HEADERS = {"Server": "lifecycle", "Cache-Control": "no-store"}

_WORDS = {True: "up", False: "down", None: "unknown"}


class Check(Protocol):
    """A check that ``/healthz`` reports, such as a `HealthCheckSource`."""

    @property
    def name(self) -> str:
        """The check's name in the response."""
        ...

    @property
    def healthy(self) -> bool | None:
        """The latest result, or None before the first check."""
        ...


class Exposed(Protocol):
    """An object that provides the metrics for ``/metrics``, such as `PrometheusMetrics`."""

    def expose(self, accept: str, /) -> tuple[bytes, str]:
        """Return the metrics and their content type, which depends on the request's ``Accept`` header."""
        ...


class ProbeServer(Auxiliary):
    """An HTTP server for health probes and metrics. Pass it to `run`, preferably first.

    - ``/livez`` returns 200 while the event loop runs. If the loop is blocked, the probe times out.
    - ``/readyz`` returns 200 once all mains and routers have started, and 503 as soon as the shutdown begins. Sources
      and mains then continue for ``drain_delay`` seconds (limited by ``exit_timeout``), so that load balancers have
      time to notice the change.
    - ``/healthz`` returns 200 if no worker has failed (`Lifetime.health` is ready) and the latest result of every check
      in ``checks`` was healthy. The response lists these results. Requests do not trigger the checks.
    - ``/metrics`` returns the metrics if you pass ``metrics``.

    The server accepts GET and HEAD requests. All responses except ``/metrics`` are small JSON objects.

    When passed to `run`, the server opens before the mains that follow it start, and closes last. It does not keep the
    program running once the other mains have finished. You can use ``async with`` instead; outside a lifetime, the
    server is then ready immediately. Either way, it raises `OSError` if the address is in use or does not exist.

    Raises:
        ValueError: if ``port`` is not a valid port, ``drain_delay`` is negative, or two checks have the same name.
        TypeError: if a check or ``metrics`` has the wrong type.
    """

    _taken: ClassVar[str] = "is already listening; create a second one with a different port"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8081,
        *,
        checks: Iterable[Check] = (),
        drain_delay: Duration = 0.0,
        metrics: Exposed | None = None,
    ) -> None:
        check_port(port)
        super().__init__()
        self.name: str = f"{host}:{port}"
        self._host, self._port = host, port
        self._checks = tuple(map(_checked, checks))
        if len({check.name for check in self._checks}) < len(self._checks):
            raise ValueError(
                f"two checks have the same name: {', '.join(sorted(check.name for check in self._checks))}"
            )
        if metrics is not None and not callable(getattr(metrics, "expose", None)):
            raise TypeError(
                f"metrics must be PrometheusMetrics(), or another object with a method `expose`, got {metrics!r}"
            )
        self._drain_delay = in_seconds("drain_delay", drain_delay, least=0, finite=True)
        self._metrics = metrics
        self._address: tuple[str, int] | None = None
        self._life: Lifetime | None = None
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
        """The server's address, without a trailing slash. Until the server starts, it contains the port you passed."""
        return url_of("http", *(self._address or (self._host, self._port)))

    async def _open(self, held: AsyncExitStack) -> None:
        from lifecycle._http import HttpServer  # aiohttp is slow to import

        self._life = current_lifetime()
        listening = await listen(self._host, self._port)
        server = HttpServer(listening, self._answer, timeout=_HEADER_TIMEOUT, log=_log)
        held.push_async_callback(server.aclose)
        await server.start()
        self._address = listening.address
        held.callback(setattr, self, "_address", None)
        if self._life is not None:
            held.callback(self._life.own_delay(self._drain_delay).end)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        from lifecycle._http import problem

        answer = self._answers.get(request.raw_path.partition("?")[0])
        if answer is None:
            return problem(404, f"this path does not exist; try {', '.join(self._answers)}")
        if request.method not in _METHODS:
            return problem(405, "this method is not allowed; use GET", {"Allow": ", ".join(_METHODS)})
        return answer(request)

    def _live(self, _request: web.BaseRequest) -> web.Response:
        """Return 200. The response itself proves that the loop is running."""
        return _response(good=True, status="live")

    def _ready(self, _request: web.BaseRequest) -> web.Response:
        status = self._readiness()
        return _response(good=status == "ready", status=status)

    def _health(self, _request: web.BaseRequest) -> web.Response:
        """Return the status of all checks. Their messages are left out, because any client may read the response."""
        status = self._readiness()
        if status == "ready" and self._life is not None and not self._life.health().ready:
            status = "unhealthy"
        checks = {check.name: _WORDS[check.healthy] for check in self._checks}
        good = status == "ready" and all(word == "up" for word in checks.values())
        return _response(good=good, status=status, checks=checks)

    def _exposed(self, request: web.BaseRequest) -> web.Response:
        """Return the metrics. Errors in custom collectors are only logged, because any client may read the response."""
        from aiohttp import web

        from lifecycle._http import problem

        assert self._metrics is not None, "the path exists only if there are metrics"
        try:
            body, content_type = self._metrics.expose(", ".join(request.headers.getall("Accept", [])))
        except Exception:  # noqa: BLE001  # a failing collector must not affect the other probes
            _log.exception("%r could not return its metrics", self._metrics)
            return problem(500, "the metrics are not available; see the program's log")
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": content_type})

    def _readiness(self) -> str:
        life = self._life
        if life is None or life.ready:
            return "ready"
        return "stopping" if life.stopping else "starting"


def _response(*, good: bool, **facts: object) -> web.Response:
    from aiohttp import web

    return web.json_response(facts, status=200 if good else 503, headers=_HEADERS)


def _checked(check: Check) -> Check:
    if isinstance(getattr(check, "name", None), str) and hasattr(check, "healthy"):
        return check
    raise TypeError(f"a check must be a HealthCheckSource, or an object with `name` and `healthy`, got {check!r}")
