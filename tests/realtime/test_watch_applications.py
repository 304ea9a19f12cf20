"""Real applications under `lifecycle watch`, started with the commands of the documentation.

After a broken edit, the old process still answers. After a good edit, a new process answers. At the end, no
process is left.
"""

from __future__ import annotations

import http.client
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import free_port
from tests.realtime.watches import LIMIT, documented, has_ended, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil

__all__ = ["here", "watch"]  # fixtures

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "restart-on-change.md").read_text()
#: The application on the page.
[FLASK] = re.findall(r"```python\n(from flask .+?)```", PAGE, re.DOTALL)

MANAGE = """\
import sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(DEBUG=True, ROOT_URLCONF="app", SECRET_KEY="test")
execute_from_command_line(sys.argv)
"""

DJANGO = """\
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("", lambda request: HttpResponse("hello"))]
"""

FASTAPI = """\
from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def index() -> str:
    return "hello"
"""

AIOHTTP = """\
import socket
from aiohttp import web


async def index(request):
    return web.Response(text="hello")


app = web.Application()
app.router.add_get("/", index)
web.run_app(app, sock=socket.socket(fileno=3))
"""

NODE = """\
const http = require("node:http");
const server = http.createServer((_, answer) => answer.end("hello"));
server.listen({ fd: 3 }, () => console.log("listening"));
process.on("SIGTERM", () => server.close(() => process.exit(0)));
"""

CELERY = """\
import pathlib, time
from celery import Celery

OUTSIDE = pathlib.Path(__file__).parents[1]
app = Celery("tasks")
app.config_from_object({"broker_url": "filesystem://", "broker_transport_options": OPTIONS})


@app.task(name="answer")
def answer(name, wait_for=None):
    (OUTSIDE / f"{name}-began").touch()
    until = time.monotonic() + 30
    while wait_for and not (OUTSIDE / wait_for).exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    (OUTSIDE / "draft").write_text("hello")
    (OUTSIDE / "draft").replace(OUTSIDE / name)
"""


def ask(port: int) -> str:
    """Return the application's answer, or an empty string during a restart."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT) as answer:
            return str(answer.read().decode()).strip('"')
    except (OSError, http.client.HTTPException):
        return ""


def keeps_running(seen: Any, app: Path, ask: Callable[[], str]) -> None:
    """Break the application, repair it, and stop the watcher."""
    until_blocking(lambda: ask() == "hello", seen.everything)
    old = break_it(seen, app, ask)
    edit(app)
    until_blocking(lambda: ask() == "goodbye", seen.everything)
    until_blocking(lambda: all(map(has_ended, old)), seen.everything)
    end(seen)


def break_it(seen: Any, app: Path, ask: Callable[[], str]) -> list[psutil.Process]:
    """Make a syntax error, and return the processes that still answer."""
    old: list[psutil.Process] = seen.children()
    write(app, app.read_text() + ")\n")
    seen.said("the old process keeps running")
    assert ask() == "hello"
    assert not any(map(has_ended, old))
    return old


def edit(app: Path) -> None:
    """Correct the syntax error, and change the answer."""
    write(app, app.read_text().removesuffix(")\n").replace("hello", "goodbye"))


def end(seen: Any) -> None:
    """Stop `lifecycle watch`, and check that no process is left."""
    left = seen.process.children(recursive=True)
    seen.process.terminate()
    seen.ends(0)
    until_blocking(lambda: all(map(has_ended, left)), lambda: f"{left} did not end")


@pytest.mark.parametrize(
    ("code", "command", "option"),
    [
        pytest.param(FLASK, "-- flask", ["--port"], id="flask"),
        pytest.param(DJANGO, "manage.py", [], id="django"),
        pytest.param(FASTAPI, "-- uvicorn app:app$", ["--port"], id="fastapi"),
    ],
)
def test_server_that_opens_its_port(watch: Any, here: Path, code: str, command: str, option: list[str]) -> None:
    write(here / "app.py", code)
    write(here / "manage.py", MANAGE)
    port = free_port()
    argv = [re.sub(r"^port:\d+", f"port:{port}", word) for word in documented("restart-on-change.md", command)]
    seen = watch(*argv, *option, str(port))
    keeps_running(seen, here / "app.py", lambda: ask(port))


@pytest.mark.parametrize(
    ("code", "argv"),
    [
        pytest.param(FASTAPI, documented("restart-on-change.md", "--socket"), id="fastapi"),
        pytest.param(FASTAPI, documented("zero-downtime.md", "--keep-old"), id="fastapi-keep-old"),
        pytest.param(AIOHTTP, ["--socket", "127.0.0.1:8000", "--", "python", "app.py"], id="aiohttp"),
    ],
)
def test_server_that_inherits_a_socket(watch: Any, here: Path, code: str, argv: list[str]) -> None:
    write(here / "app.py", code)
    seen = watch(*(word.replace(":8000", ":0") for word in argv))
    [port] = seen.said(r"listening on 127\.0\.0\.1:(\d+)")
    keeps_running(seen, here / "app.py", lambda: ask(int(port)))


@pytest.mark.engine("node")
def test_node_program(watch: Any, here: Path) -> None:
    write(here / "app.js", NODE)
    seen = watch("--socket", "127.0.0.1:0", "--", "node", "app.js")
    [port] = seen.said(r"listening on 127\.0\.0\.1:(\d+)")
    keeps_running(seen, here / "app.js", lambda: ask(int(port)))


class Tasks:
    """A client of a Celery worker. The tasks are files, so that no message broker is needed."""

    def __init__(self, outside: Path) -> None:
        (outside / "queue").mkdir()
        self.outside = outside
        self.options = {
            "data_folder_in": str(outside / "queue"),
            "data_folder_out": str(outside / "queue"),
            "control_folder": str(outside / "control"),
            "polling_interval": 0.05,
        }
        self._asked = 0

    def send(self, name: str, wait_for: str | None = None) -> None:
        from celery import Celery

        with Celery("client", set_as_current=False, broker="filesystem://") as client:
            client.conf.broker_transport_options = self.options
            client.send_task("answer", (name, wait_for), ignore_result=True)

    def answer(self, name: str) -> str:
        until_blocking((self.outside / name).exists, f"the answer to {name}")
        return (self.outside / name).read_text()

    def ask(self) -> str:
        self._asked += 1
        self.send(f"question-{self._asked}")
        return self.answer(f"question-{self._asked}")


def test_celery_worker_finishes_its_task_before_a_restart(watch: Any, here: Path) -> None:
    pytest.importorskip("celery")
    tasks = Tasks(here.parent)
    write(here / "tasks.py", CELERY.replace("OPTIONS", repr(tasks.options)))
    seen = watch(*documented("restart-on-change.md", "-- celery"))
    assert tasks.ask() == "hello"
    old = break_it(seen, here / "tasks.py", tasks.ask)

    tasks.send("slow", wait_for="go")
    until_blocking((here.parent / "slow-began").exists, seen.everything)
    edit(here / "tasks.py")
    seen.seen("Warm shutdown")
    assert not (here.parent / "slow").exists()
    (here.parent / "go").touch()
    assert tasks.answer("slow") == "hello"
    until_blocking(lambda: all(map(has_ended, old)), seen.everything)
    assert tasks.ask() == "goodbye"
    end(seen)
