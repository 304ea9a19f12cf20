"""The programs on the specification's first page, changed only where a test cannot run them.

Program 1 stops and starts a `ProcessWorker`, where the page has a supervisor. Program 5 is tested with supervisors.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from lifecycle import (
    Event,
    FileEvent,
    Flows,
    Gate,
    GitHub,
    Pool,
    Recycle,
    Router,
    TaskWorker,
    WebhookEvent,
    WebhookSource,
    lifetime,
    linear,
    task,
)
from lifecycle.testing import Clock, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMIT = 30.0

HOT_RELOADER = """
import sys
from lifecycle import Debounce, FileBatch, FileWatchSource, ProcessWorker, Router, merge_files, run

def line(text, stream):
    print(text, flush=True)

class App:
    worker = None
    async def restart(self, name):
        if self.worker is not None:
            await self.worker.stop()
        self.worker = ProcessWorker(name, sys.executable, "src/app.py", output=line)
        await self.worker.start()
    async def run(self):
        await self.restart("app")

router, app = Router(), App()
router.add_source(FileWatchSource("src"))
@router.on("file/*", debounce=Debounce(0.2, max_wait=2, merge=merge_files), busy="restart")
async def reload(batch: FileBatch) -> None:
    await app.restart("app")
run(app, router)
"""

REPL = """
import asyncio
from lifecycle import CommandEvent, new_interactive_router, run

class App:
    async def suspend(self): print("suspended", flush=True)
    async def resume(self): print("resumed", flush=True)
    async def run(self): await asyncio.Event().wait()

async def ship(*args):
    print("shipped", *args, flush=True)

app = App()
repl = new_interactive_router(suspend=app)
@repl.command
async def deploy(event: CommandEvent) -> None:
    '''Deploy TARGET.'''
    await ship(*event.args)
run(app, repl)
"""


async def started(program: str, directory: Path) -> asyncio.subprocess.Process:
    (directory / "program.py").write_text(textwrap.dedent(program))
    return await asyncio.create_subprocess_exec(
        sys.executable, "program.py", cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


async def line_with(text: str, process: asyncio.subprocess.Process) -> None:
    """Read the output until a line contains ``text``."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        async for line in process.stdout:
            if text in line.decode():
                return
    raise AssertionError(f"the program exited without printing {text!r}")


async def test_1_a_hot_reloader(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    app = tmp_path / "src" / "app.py"
    app.write_text("import time\nprint('first', flush=True)\ntime.sleep(600)\n")
    process = await started(HOT_RELOADER, tmp_path)
    try:
        await line_with("first", process)
        seen = asyncio.create_task(line_with("second", process))
        # The watch may start slightly after the worker, so the file is saved repeatedly until the change is detected.
        while not seen.done():
            app.write_text("import time\nprint('second', flush=True)\ntime.sleep(600)\n")
            await asyncio.wait([seen], timeout=2)
        await seen
        process.terminate()
        async with asyncio.timeout(LIMIT):
            assert process.stdout is not None
            await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_2_a_repl(tmp_path: Path) -> None:
    process = await started(REPL, tmp_path)
    try:
        async with asyncio.timeout(LIMIT):
            out, _ = await process.communicate(b"help\nsuspend\ndeploy a 'b c'\nresume\nquit\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = out.decode()
    assert process.returncode == 0, said
    assert "Deploy TARGET." in said
    order = [said.index(word) for word in ("suspended", "shipped a b c", "resumed")]
    assert order == sorted(order)


async def test_3_a_webhook(monkeypatch: Any) -> None:
    monkeypatch.setenv("SECRET", "hush")
    shipped: list[str] = []

    async def ship(ref: str) -> None:
        shipped.append(ref)

    router = Router()
    source = WebhookSource(port=0, verify=GitHub(os.environ["SECRET"]))
    router.add_source(source)

    @router.on("webhook/deploy")
    async def pull(event: WebhookEvent) -> None:
        await ship(event.json()["ref"])

    body = b'{"ref": "main"}'
    good = "sha256=" + hmac.new(b"hush", body, hashlib.sha256).hexdigest()
    async with running(router), aiohttp.ClientSession() as client:
        for signature, status in ((good, 202), ("sha256=" + "0" * 64, 401)):
            headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": signature}
            async with client.post(f"{source.url}/deploy", data=body, headers=headers) as answer:
                assert answer.status == status
    assert shipped == ["main"]


async def test_4_suspend(clock: Clock) -> None:
    counted, saved = 0, list[int]()

    async def count(gate: Gate) -> None:
        nonlocal counted
        while True:
            await gate.checkpoint()
            counted += 1
            await asyncio.sleep(1)

    def save() -> None:
        saved.append(counted)

    async with TaskWorker("counter", count) as counter:
        await clock.advance(2.5)
        await counter.suspend()
        save()
        await clock.advance(60)
        assert (saved, counted) == ([3], 3)
        await counter.resume()
        await clock.advance(2)
    assert counted > 3


MODELS = """
class Model:
    def __init__(self):
        self.asked = 0
    def predict(self, x):
        self.asked += 1
        return [x * 2, self.asked]
"""


async def test_6_a_pool(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    answers, user = [], "user-1"
    async with Pool("ml", "models:Model", size=(1, 4), recycle=Recycle(calls=1000)) as ml:
        for x in (1, 2, 3):
            y = await ml.call("predict", x, session=user, deadline=10)
            answers.append(y)
    assert answers == [[2, 1], [4, 2], [6, 3]]


async def test_7_a_flow(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    built: list[str] = []

    @task
    async def image(ref: str) -> str:
        built.append(ref)
        return f"app:{ref}"

    @task
    def server(image: str) -> dict[str, str]:
        return {"runs": image}

    deploy, ref = linear("deploy", image, server), "v1"
    for _ in range(2):
        async with Flows("app.db") as flows:
            out = await flows.start(deploy, id=ref, ref=ref)
        assert out == {"image": "app:v1", "server": {"runs": "app:v1"}}
    assert built == ["v1"]


async def test_8_inside_another_framework(clock: Clock) -> None:
    polled = 0

    async def poll() -> None:
        nonlocal polled
        while True:
            polled += 1
            await asyncio.sleep(1)

    async def app_lifespan() -> AsyncIterator[None]:
        async with lifetime(signals=False) as life:
            life.go(poll)
            yield

    lifespan = app_lifespan()
    await anext(lifespan)
    await clock.advance(3.5)
    assert await anext(lifespan, "over") == "over"
    assert polled == 4


async def test_9_a_source_of_ones_own(clock: Clock, recorder: Recorder) -> None:
    async def fetch() -> str:
        await asyncio.sleep(1)
        return "hello"

    router = Router()
    router.handle("mail/*", recorder)

    async def mail() -> AsyncIterator[Event]:
        yield Event("mail/new", await fetch())

    router.add_source(mail)
    async with running(router):
        await clock.advance(2)
    assert recorder.events == [Event("mail/new", "hello")]


async def test_10_a_test_in_virtual_time(clock: Clock) -> None:
    async def save_three_times(router: Router) -> None:
        for _ in range(3):
            await router.emit(FileEvent("modified", Path("app.py")))

    router = Router()
    router.handle("file/*", seen := Recorder(), debounce=0.2)
    async with running(router):
        await save_three_times(router)
        await clock.advance(1)
    assert len(seen.events) == 1
