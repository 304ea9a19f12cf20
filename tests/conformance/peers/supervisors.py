"""Peers that keep programs running."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.conformance.peers.programs import PARENT, folder, lives, pids, run, running, until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "circus_stops_the_process_and_not_what_that_has_started",
    "circus_that_is_killed_leaves_its_processes",
    "supervisord_stops_the_process_and_not_what_that_has_started",
    "supervisord_that_is_killed_leaves_its_processes",
]


SUPERVISORD = """
[supervisord]
nodaemon=true
[unix_http_server]
file=%(here)s/socket
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://%(here)s/socket
[program:app]
command={python} app.py
directory=%(here)s
"""
CIRCUS = """
[circus]
endpoint = ipc://{here}/endpoint
pubsub_endpoint = ipc://{here}/pubsub
[watcher:app]
cmd = {python} app.py
working_dir = {here}
"""


def supervisord_stops_the_process_and_not_what_that_has_started() -> None:
    with supervised_by("supervisord") as (here, parent, child, _):
        run(here, "supervisorctl", "-c", "conf", "stop", "app")
        assert not lives(parent)
        assert lives(child)


def supervisord_that_is_killed_leaves_its_processes() -> None:
    with supervised_by("supervisord") as (_, parent, _child, supervisor):
        supervisor.kill()
        supervisor.wait()
        assert lives(parent)


def circus_stops_the_process_and_not_what_that_has_started() -> None:
    with supervised_by("circusd") as (here, parent, child, _):
        run(here, "circusctl", "--endpoint", f"ipc://{here}/endpoint", "stop", "app")
        until(lambda: not lives(parent))
        assert lives(child)


def circus_that_is_killed_leaves_its_processes() -> None:
    with supervised_by("circusd") as (_, parent, _child, supervisor):
        supervisor.kill()
        supervisor.wait()
        assert lives(parent)


@contextmanager
def supervised_by(name: str) -> Iterator[tuple[Path, int, int, subprocess.Popen[bytes]]]:
    with folder(PARENT) as here:
        text = SUPERVISORD if name == "supervisord" else CIRCUS
        conf = text.replace("{python}", sys.executable).replace("{here}", str(here))
        (here / "conf").write_text(conf)
        arguments = ["-c", "conf"] if name == "supervisord" else ["conf"]
        with running(here, name, *arguments) as supervisor:
            parent, child = pids(here, 1)
            yield here, parent, child, supervisor
