"""``--log-format json`` with real programs: every line on stderr is JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 30.0

PROGRAM = """
import asyncio
import logging

from lifecycle import Event, Router

logging.basicConfig(level=logging.ERROR, format="mine %(message)s")
log = logging.getLogger("shop")
router = Router("orders")


@router.on("order/*")
async def pack(event):
    log.info("packing")
    raise ValueError("no\\nboxes")


async def orders():
    yield Event("order/new")
    router.stop()


router.add_source(orders)


async def fails():
    raise RuntimeError("boom")
"""


def lifecycle(here: Path, *argv: str) -> tuple[int, list[dict[str, Any]], list[str]]:
    """Return the status, the JSON lines of stderr, and the lines of stdout."""
    (here / "app.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "lifecycle", *argv],
        cwd=here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(here)},
    )
    return ended.returncode, [json.loads(line) for line in ended.stderr.splitlines()], ended.stdout.splitlines()


def test_run_logs_records_with_their_event(tmp_path: Path) -> None:
    status, lines, _ = lifecycle(tmp_path, "run", "--log-format", "json", "app:router")
    assert status == 0
    packing = next(line for line in lines if line["logger"] == "shop")
    assert (packing["message"], packing["topic"], packing["level"]) == ("packing", "order/new", "info")
    failed = next(line for line in lines if line["logger"] == "lifecycle.control")
    assert failed["event_id"] == packing["event_id"]
    assert failed["exception"].endswith("ValueError: no\nboxes")


def test_an_error_that_ends_the_program_is_one_line(tmp_path: Path) -> None:
    status, lines, _ = lifecycle(tmp_path, "run", "app:fails", "--log-format=json")
    assert status == 1
    [line] = [line for line in lines if line["level"] == "error"]
    assert line["message"] == "boom"
    assert "RuntimeError: boom" in line["exception"]


def test_up_marks_each_line_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("web: echo hello\n")
    status, lines, shown = lifecycle(tmp_path, "up", "--log-format", "json")
    assert status == 0
    assert any("web" in line["message"] for line in lines)
    assert [(line["worker"], line["message"]) for line in map(json.loads, shown)] == [("web", "hello")]
