"""The audit of locked versions, with a server in place of PyPI."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tools import audit

if TYPE_CHECKING:
    from collections.abc import Generator

LOCK = """
[[package]]
name = "idna"
version = "3.6"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "ours"
version = "0.1.0"
source = { editable = "." }

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "https://pypi.org/simple" }
"""
KNOWN = {"id": "PYSEC-2024-60", "fixed_in": ["3.7"], "link": "https://osv.dev/PYSEC-2024-60", "withdrawn": None}


@contextmanager
def serving(answers: dict[str, Any]) -> Generator[tuple[str, list[str]]]:
    """Serve ``answers`` by path, and yield the URL and a list of the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path)).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def lock(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text(LOCK)
    monkeypatch.setattr(audit, "LOCK", tmp_path / "uv.lock")


def test_a_version_with_an_advisory_fails_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    withdrawn = KNOWN | {"id": "PYSEC-0", "withdrawn": "2024-01-01T00:00:00Z"}
    answers = {"/idna/3.6/json": {"vulnerabilities": [KNOWN, withdrawn]}, "/six/1.17.0/json": {"vulnerabilities": []}}
    with serving(answers) as (url, asked):
        assert audit.main([url]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "idna 3.6: PYSEC-2024-60, fixed in 3.7: https://osv.dev/PYSEC-2024-60",
        "uv.lock: 2 versions, 1 advisories",
    ]
    assert asked == list(answers)


def test_versions_without_advisories_pass(capsys: pytest.CaptureFixture[str]) -> None:
    none: dict[str, list[object]] = {"vulnerabilities": []}
    with serving({"/idna/3.6/json": none, "/six/1.17.0/json": none}) as (url, _):
        assert audit.main([url]) == 0
    assert capsys.readouterr().out == "uv.lock: 2 versions, 0 advisories\n"


@pytest.mark.parametrize("answers", [{}, {"/idna/3.6/json": {"info": {}}}, {"/idna/3.6/json": []}])
def test_an_audit_without_a_source_says_so_and_stops(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answers) as (url, asked):
        assert audit.main([url]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"not audited: {url} has no advisories for idna 3.6: ")
    assert asked == ["/idna/3.6/json"]


def test_an_audit_without_a_network_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as (url, _):
        pass
    assert audit.main([url]) == 2
    assert "Connection refused" in capsys.readouterr().err
