"""What is answered to probes: a small JSON object a path.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle.sources._http_answers import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.sources.probes import Check

__all__ = ["Probes"]

_METHODS = ("GET", "HEAD")

_HEADERS = {"Server": "lifecycle", "Cache-Control": "no-store"}


class Probes:
    """Answers the requests of one server; ``ready`` gives ``"ready"``, or why not."""

    def __init__(self, ready: Callable[[], str], checks: Sequence[Check]) -> None:
        self._ready = ready
        self._checks = checks
        self._answers = {"/livez": self._live, "/readyz": self._readiness, "/healthz": self._health}

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to ``request``."""
        answer = self._answers.get(request.raw_path.partition("?")[0])
        if answer is None:
            return problem(404, f"there is nothing under this path; try {', '.join(self._answers)}")
        if request.method not in _METHODS:
            return problem(405, "this method is not allowed; use GET", {"Allow": ", ".join(_METHODS)})
        return answer()

    def _live(self) -> web.Response:
        """That this is said is all there is to it."""
        return _told(good=True, status="live")

    def _readiness(self) -> web.Response:
        status = self._ready()
        return _told(good=status == "ready", status=status)

    def _health(self) -> web.Response:
        """Not what a check said: anybody may ask."""
        status = self._ready()
        checks = {check.name: _WORDS[check.healthy] for check in self._checks}
        good = status == "ready" and all(word == "up" for word in checks.values())
        return _told(good=good, status=status, checks=checks)


_WORDS = {True: "up", False: "down", None: "unknown"}


def _told(*, good: bool, **facts: object) -> web.Response:
    return web.json_response(facts, status=200 if good else 503, headers=_HEADERS)
