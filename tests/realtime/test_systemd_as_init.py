"""Programs and exported units under the real systemd."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.programs import LIMIT, Running, free_port
from tests.systemd import Systemd, missing
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from lifecycle import ReloadEvent, ReloadHandler, Router, on_shutdown, run
from lifecycle.observe import ControlSocket

home, ending = Path(sys.argv[1]), sys.argv[2:]

class Source:
    async def __aenter__(self):
        while not (home / "go").exists():
            await asyncio.sleep(0.01)
    async def __aexit__(self, *_):
        pass
    async def run(self, emit):
        await asyncio.Event().wait()

async def end():
    if "slow" in ending:
        await asyncio.sleep(2.5)
    print("closed", flush=True)
    if "blocked" in ending:
        time.sleep(1000)

router = Router()
router.add_source(Source())
router.handle(ReloadEvent, ReloadHandler(lambda: 1, lambda new: print("reloaded", flush=True)))

async def main():
    on_shutdown(end)
    while not (home / "hang").exists():
        await asyncio.sleep(0.02)
    (home / "hang").unlink()
    print("hanging", flush=True)
    time.sleep(1000)

run(ControlSocket("program"), router, main, exit_timeout=1.5 if "blocked" in ending else 25)
"""
SERVICE = """
[Service]
Type=notify
ExecStart={python} {home}/program.py {home} {arguments}
ExecReload=/bin/kill -HUP $MAINPID
RuntimeDirectory={name}
LimitCORE=0
Restart=on-failure
RestartSec=0
{more}
"""
RECEIVER = """
import sys
from lifecycle import Router, run
from lifecycle.sources import WebhookSource

router = Router()
for address in [("127.0.0.1", int(sys.argv[1])), ("unix:" + sys.argv[2],)]:
    router.add_source(WebhookSource(*address, verify=None))
router.handle("**", lambda event: print("got", event.topic, flush=True))
run(router)
"""


@pytest.fixture(scope="module")
def manager() -> Iterator[Systemd]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    made = Systemd()
    (made.home / "program.py").write_text(PROGRAM)
    (made.home / "go").touch()
    yield made
    made.close()


def install(manager: Systemd, name: str, *arguments: str, more: str = "") -> None:
    words = " ".join(arguments)
    text = SERVICE.format(python=sys.executable, home=manager.home, name=name, arguments=words, more=more)
    manager.install(**{f"{name}_service": text})


def hang(manager: Systemd, name: str) -> None:
    """Make the program block its event loop."""
    (manager.home / "hang").touch()
    until_blocking(lambda: "hanging" in manager.journal(name).splitlines())


def post(family: int, address: str | tuple[str, int], path: str) -> int:
    """Send a request with the address of a path, and return the status."""
    with socket.socket(family) as there:
        there.settimeout(2 * LIMIT)  # the program has to start
        there.connect(address)
        there.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        answer = http.client.HTTPResponse(there)
        answer.begin()
        return answer.status


def test_a_service_starts_reloads_and_stops(manager: Systemd) -> None:
    install(manager, "whole")
    (manager.home / "go").unlink()
    manager.systemctl("start", "--no-block", "whole")
    until_blocking(lambda: "program.sock" in manager.run("ls", "-R", "/run/whole", fails=True))
    assert manager.show("whole", "ActiveState") == ["activating"]
    (manager.home / "go").touch()
    manager.systemctl("start", "whole")
    assert manager.show("whole", "ActiveState", "StatusText") == ["active", "running"]
    manager.systemctl("reload", "whole")
    until_blocking(lambda: "reloaded" in manager.journal("whole"))
    assert "program" in manager.run(sys.executable, "-m", "lifecycle", "ctl", "ps")
    manager.systemctl("stop", "whole")
    journal = manager.journal("whole").splitlines()
    # The lines of the program and of systemd come from different sockets, so they may swap places.
    assert {"closed", "whole.service: Deactivated successfully."} <= set(journal)
    assert manager.run("ls", "/run/whole", fails=True) == ""


def test_a_program_that_hangs_is_killed_and_started_again(manager: Systemd) -> None:
    install(manager, "hanging", more="WatchdogSec=2")
    manager.systemctl("start", "hanging")
    hang(manager, "hanging")
    until_blocking(lambda: manager.show("hanging", "NRestarts", "SubState") == ["1", "running"])
    assert "hanging.service: Watchdog timeout" in manager.journal("hanging")
    manager.systemctl("stop", "hanging")
    assert "hanging.service: Deactivated successfully." in manager.journal("hanging")


@pytest.mark.parametrize(
    ("ending", "told"), [("slow", "Deactivated successfully."), ("blocked", "Failed with result 'exit-code'.")]
)
def test_a_shutdown_gets_the_time_that_exit_timeout_allows(manager: Systemd, ending: str, told: str) -> None:
    """The program requests more time than ``TimeoutStopSec``, and ends itself if it blocks the event loop."""
    install(manager, ending, ending, more="TimeoutStopSec=1")
    manager.systemctl("start", ending)
    manager.systemctl("stop", ending)
    assert "closed" in manager.journal(ending)
    assert f"{ending}.service: {told}" in manager.journal(ending)


def test_a_program_that_hangs_is_killed_when_it_does_not_stop_in_time(manager: Systemd) -> None:
    install(manager, "stuck", more="TimeoutStopSec=1")
    manager.systemctl("start", "stuck")
    hang(manager, "stuck")
    manager.systemctl("stop", "stuck")
    assert "stuck.service: Failed with result 'timeout'." in manager.journal("stuck")


def test_a_socket_unit_starts_the_service_and_keeps_connections_while_it_is_down(manager: Systemd) -> None:
    port, path = free_port(), manager.home / "hook.sock"
    (manager.home / "receiver.py").write_text(RECEIVER)
    manager.install(
        hook_socket=f"[Socket]\nListenStream=127.0.0.1:{port}\nListenStream={path}\nSocketMode=0666\n",
        hook_service=f"[Service]\nType=notify\nExecStart={sys.executable} {manager.home}/receiver.py {port} {path}\n",
    )
    manager.systemctl("start", "hook.socket")
    assert manager.show("hook.service", "ActiveState") == ["inactive"]
    assert post(socket.AF_INET, ("127.0.0.1", port), "/one") == 202
    assert manager.show("hook.service", "ActiveState") == ["active"]
    assert post(socket.AF_UNIX, str(path), "/two") == 202
    assert path.stat().st_mode & 0o777 == 0o666
    manager.systemctl("stop", "hook.service")
    # systemd has kept the sockets, and starts the service again.
    assert post(socket.AF_UNIX, str(path), "/three") == 202
    text = manager.journal("hook.service")
    assert [line for line in text.splitlines() if line.startswith("got")] == [
        "got webhook/one",
        "got webhook/two",
        "got webhook/three",
    ]
    assert text.count("Started hook.service") == 2
    manager.systemctl("stop", "hook.socket", "hook.service")


PARENT = """
import asyncio
from lifecycle import ProcessWorker, run
from lifecycle.observe import ControlSocket

DAEMON = "setsid sleep 1000 & echo started; sleep 1000"

async def main():
    await asyncio.Event().wait()

worker = ProcessWorker("child", "sh", "-c", DAEMON, output=lambda line, _: print(line, flush=True))
run(ControlSocket("parent"), worker, main)
"""
HARDENED = """
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProcSubset=pid
NoNewPrivileges=yes
CapabilityBoundingSet=
MemoryDenyWriteExecute=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""


@pytest.mark.parametrize(("name", "settings"), [("delegated", "Delegate=yes"), ("hardened", HARDENED)])
def test_a_restricted_service_leaves_no_process_for_systemd_to_kill(manager: Systemd, name: str, settings: str) -> None:
    (manager.home / "parent.py").write_text(PARENT)
    # systemd stops only the main process, and kills the others that are still running when that has exited.
    settings += f"\nKillMode=mixed\nRuntimeDirectory={name}\nExecStart={sys.executable} {manager.home}/parent.py\n"
    unit = f"[Service]\nType=notify\n{settings}"
    manager.install(**{f"{name}_service": unit})
    manager.systemctl("start", name)
    until_blocking(lambda: "started" in manager.journal(name).splitlines())
    assert manager.run("ls", f"/run/{name}/lifecycle") == "parent.sock"
    # With a delegated subtree, the child has its own cgroup.
    groups = manager.run("ls", f"/sys/fs/cgroup/system.slice/{name}.service")
    assert ("lifecycle-" in groups) == (name == "delegated")
    manager.systemctl("stop", name)
    text = manager.journal(name)
    assert f"{name}.service: Deactivated successfully." in text
    assert "Killing process" not in text


TABLES = r"""
[processes.seed]
command = ["{python}", "show.py", "seed", "a\"b\\c $HOME ${{WORD}} 100% é", ";", "line\nbreak\u0007", "'"]
restart = "never"

[processes.web]
command = ["{python}", "web.py", "p%t"]
after = ["seed"]
ready = "notify"
restart = "on-failure"
backoff = 0
env = {{ TABLE = "t\"$x%\\ `y`" }}

[processes.plain]
command = "id -un > shown/plain; printf '<%s>' \"$WORD\" 50% \"a  b\" >> shown/plain"
restart = "never"
user = "nobody"
"""
SHOW = """
import json, os, sys

names = ("WORD", "TABLE", "PYTHONUNBUFFERED")
with open(os.path.join("shown", sys.argv[1] + ".part"), "w") as file:
    json.dump([sys.argv[2:], os.getcwd(), {name: os.environ.get(name) for name in names}], file)
os.rename(file.name, file.name.removesuffix(".part"))
"""
WEB = """
import asyncio, os, runpy, sys
from lifecycle import run

assert os.path.exists("shown/seed")
sys.argv.insert(1, "web")
runpy.run_path("show.py")

async def main():
    await asyncio.Event().wait()

run(main)
"""


def shown(here: Path) -> dict[str, str]:
    """Wait until all processes have run, and return what they have found."""
    directory = here / "shown"
    until_blocking(
        lambda: (
            {"seed", "web", "plain"} <= {path.name for path in directory.iterdir()}
            and (directory / "plain").read_text().endswith("b>")
        )
    )
    found = {path.name: path.read_text() for path in directory.iterdir()}
    shutil.rmtree(directory)
    return found


def make_writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def test_exported_units_run_the_processes_as_lifecycle_up_does(manager: Systemd) -> None:
    here = manager.home / "a b%c"
    here.mkdir()
    manager.home.chmod(0o755)
    (here / "lifecycle.toml").write_text(TABLES.format(python=sys.executable))
    (here / ".env").write_text("WORD='p$w\"d`\\\\ %n'\n")
    (here / "show.py").write_text(SHOW)
    (here / "web.py").write_text(WEB)
    make_writable(here / "shown")
    with closing(Running("-m", "lifecycle", "up", cwd=here, env={})) as up:
        expected = shown(here)
        up.stop()
    assert "p$w" in expected["seed"]
    exported = [sys.executable, "-m", "lifecycle", "export", "systemd", str(manager.units)]
    subprocess.run(exported, cwd=here, check=True, capture_output=True)
    make_writable(here / "shown")
    manager.systemctl("daemon-reload")
    manager.systemctl("start", "a_b_c.target")
    assert shown(here) == expected
    manager.systemctl("start", "a_b_c-web.service")
    (pid,) = manager.show("a_b_c-web.service", "MainPID")
    make_writable(here / "shown")
    (here / "shown" / "seed").touch()
    manager.systemctl("kill", "--signal=KILL", "--kill-whom=main", "a_b_c-web.service")
    until_blocking(lambda: manager.show("a_b_c-web.service", "NRestarts", "SubState") == ["1", "running"])
    assert manager.show("a_b_c-web.service", "MainPID") != [pid]
    manager.systemctl("stop", "a_b_c.target")
    until_blocking(lambda: "a_b_c-web.service: Deactivated successfully." in manager.journal("a_b_c-web"))
