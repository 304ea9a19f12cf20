"""What is answered to probes: a small JSON object a path; and to those who ask for figures.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle.sources._http.answers import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.sources.probes import Check, Exposed

__all__ = ["Probes"]

_log = logging.getLogger("lifecycle.sources")

_METHODS = ("GET", "HEAD")

_HEADERS = {"Server": "lifecycle", "Cache-Control": "no-store"}


class Probes:
    """Answers the requests of one server; ``ready`` gives ``"ready"``, or why not."""

    def __init__(self, ready: Callable[[], str], checks: Sequence[Check], metrics: Exposed | None = None) -> None:
        self._ready = ready
        self._checks = checks
        self._answers: dict[str, Callable[[web.BaseRequest], web.Response]] = {
            "/livez": self._live,
            "/readyz": self._readiness,
            "/healthz": self._health,
        }
        if metrics is not None:
            self._answers["/metrics"] = partial(_figures, metrics)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to ``request``."""
        answer = self._answers.get(request.raw_path.partition("?")[0])
        if answer is None:
            return problem(404, f"there is nothing under this path; try {', '.join(self._answers)}")
        if request.method not in _METHODS:
            return problem(405, "this method is not allowed; use GET", {"Allow": ", ".join(_METHODS)})
        return answer(request)

    def _live(self, _request: web.BaseRequest) -> web.Response:
        """That this is said is all there is to it."""
        return _told(good=True, status="live")

    def _readiness(self, _request: web.BaseRequest) -> web.Response:
        status = self._ready()
        return _told(good=status == "ready", status=status)

    def _health(self, _request: web.BaseRequest) -> web.Response:
        """Not what a check said: anybody may ask."""
        status = self._ready()
        checks = {check.name: _WORDS[check.healthy] for check in self._checks}
        good = status == "ready" and all(word == "up" for word in checks.values())
        return _told(good=good, status=status, checks=checks)


_WORDS = {True: "up", False: "down", None: "unknown"}


def _told(*, good: bool, **facts: object) -> web.Response:
    return web.json_response(facts, status=200 if good else 503, headers=_HEADERS)


def _figures(metrics: Exposed, request: web.BaseRequest) -> web.Response:
    """A collector of somebody's may raise; the reason is for the log, since anybody may ask."""
    try:
        body, content_type = metrics.expose(", ".join(request.headers.getall("Accept", [])))
    except Exception:  # noqa: BLE001  # whatever a collector raises, the probes beside it are answered
        _log.exception("%r could not be asked for its figures", metrics)
        return problem(500, "the figures cannot be had; the log of the program says why")
    return web.Response(body=body, headers={**_HEADERS, "Content-Type": content_type})
