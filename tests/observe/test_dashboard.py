"""`Dashboard` without requests: its arguments are checked, and its page is complete and loads nothing external."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lifecycle import hooks
from lifecycle.cli.ctl.commands import COMMANDS
from lifecycle.control import Event, Router
from lifecycle.control.commands import lifecycle_commands
from lifecycle.observe import Dashboard
from lifecycle.observe.console import Console
from lifecycle.observe.http.api import SharedMessages
from lifecycle.observe.http.live import Figures, Latencies, Refusals, live, memory_of, merged, page_files
from lifecycle.runtime import lifetime
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.testing import Clock


def test_it_listens_on_loopback_with_a_generated_token_by_default() -> None:
    made = Dashboard()
    assert made.url == f"http://127.0.0.1:0/#token={made.token}"
    assert repr(made) == "<Dashboard http://127.0.0.1:0>"
    assert len(made.token) >= 32
    assert made.token != Dashboard().token
    given = Dashboard("::1", 8080, "mine")
    assert given.url == "http://[::1]:8080"
    assert given.token == "mine"
    assert Dashboard.auxiliary


@pytest.mark.parametrize("port", [-1, 65_536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"port={port} is out of range"):
        Dashboard(port=port)


def test_a_token_that_no_header_could_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Dashboard(token="")


async def test_outside_a_lifetime_there_is_nothing_to_show() -> None:
    with pytest.raises(LookupError, match="lifetime"):
        async with Dashboard():
            pass


# -- the page ------------------------------------------------------------------------------------------------------

FILES = page_files()
OWN = {path: body.decode() for path, (body, _) in FILES.items() if "/vendor/" not in path}


def test_every_file_that_the_page_loads_exists() -> None:
    wanted = set(re.findall(r'(?:src|href)="([^"]+)"', OWN["/"]))
    for path, (body, kind) in FILES.items():
        if kind == "text/javascript":
            names = re.findall(r'(?:from|import) ?"([^"]+)"', body.decode())
            assert all(name.startswith(".") for name in names), f"{path} imports a file that does not exist"
            wanted |= {posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) for name in names}
    assert wanted <= FILES.keys(), wanted - FILES.keys()
    assert len(wanted) == len(FILES) - 1, "a file that is never requested"


def test_the_page_needs_nothing_from_elsewhere_and_nothing_that_its_policy_forbids() -> None:
    for path, text in OWN.items():
        assert not re.findall(r"https?://(?!www\.w3\.org/)", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|unsafeHTML|\beval\(|new Function|document\.write", text
        )
        assert not re.search(r'\s(?:style|on\w+)="', text), f"{path} contains an inline style or handler"
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style", OWN["/"])


def test_vendored_files_have_a_version_and_a_licence() -> None:
    from importlib.resources import files

    for library in (files("lifecycle.observe") / "page" / "vendor").iterdir():
        assert "Copyright" in (library / "LICENSE").read_text(encoding="utf-8")
        assert '"version"' in (library / "package.json").read_text(encoding="utf-8")


def test_licences_are_not_served_and_files_have_content_types() -> None:
    assert {kind for _, kind in FILES.values()} == {"text/html", "text/javascript", "text/css", "image/svg+xml"}
    assert all(path.startswith("/page/") or path == "/" for path in FILES)


# -- figures -------------------------------------------------------------------------------------------------------


def finish(pattern: str, duration: float) -> None:
    hooks.handler_finished.announce(None, event=None, pattern=pattern, duration=duration)


def test_latencies_are_of_the_last_calls_of_each_pattern() -> None:
    with Latencies() as latencies:
        for number in range(1000):
            finish("file/*", number / 1000)
        finish("mail", 0.5)
        of_files = latencies.of("file/*")
        assert latencies.all() == {"file/*": of_files, "mail": {"p50": 0.5, "p95": 0.5, "count": 1}}
    assert of_files == {"p50": 0.9, "p95": 0.99, "count": 1000}
    finish("mail", 9)
    assert latencies.of("nobody") is None
    assert latencies.of("mail") == {"p50": 0.5, "p95": 0.5, "count": 1}


def test_no_number_of_patterns_fills_the_memory_and_the_busy_ones_stay() -> None:
    with Latencies() as latencies:
        for number in range(5000):
            finish("busy", 0.1)
            finish(f"once/{number}", 0.1)
        known = latencies.all()
    assert len(known) == 2000
    assert known["busy"]["count"] == 5000
    assert all(one["count"] >= other["count"] for one, other in pairwise([known["busy"], known["once/4999"]]))


async def test_routers_with_the_same_pattern_have_latencies_of_their_own(clock: Clock) -> None:
    one, two = Router(), Router()
    one.handle("job/*", lambda _: asyncio.sleep(1))
    two.handle("job/*", lambda _: asyncio.sleep(5))
    two.handle("mail", lambda _: None)
    async with lifetime(signals=False), running(one), running(two), Console() as console:
        with Latencies() as latencies:
            for router, topic in ((one, "job/a"), (two, "job/b"), (two, "mail")):
                await (await router.emit(Event(topic)))
            message = Figures(latencies, Refusals(), console).message([])
    found = json.loads(message.partition(b"data: ")[2])["latency"]
    ids = ["router:router/route:job/*", "router:router#2/route:job/*"]
    assert [found[name]["p50"] for name in ids] == pytest.approx([1, 5])
    assert found.keys() == {*ids, "mail"}


async def test_a_message_is_written_once_for_all_pages(clock: Clock) -> None:
    router = Router()
    router.handle("**", lambda _: None)

    async def read(messages: AsyncGenerator[bytes], into: list[bytes]) -> None:
        async with aclosing(messages):
            async for message in messages:
                into += [message]

    async with lifetime(signals=False), running(router), Console() as console:
        figures, shared = Figures(Latencies(), Refusals(), console), SharedMessages()
        pages: tuple[list[bytes], list[bytes]] = [], []
        reading = [asyncio.create_task(read(live(console, figures, shared), page)) for page in pages]
        await clock.advance(1)
        await (await router.emit(Event("some/event")))
        await clock.advance(1)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
    for name, least in (b"event: change", 2), (b"event: figures", 1):
        one, other = ([message for message in page if message.startswith(name)] for page in pages)
        assert len(one) >= least
        assert all(first is second for first, second in zip(one, other, strict=True)), name
    assert pages[0][-1] == pages[1][-1]


def test_memory_is_that_of_processes_which_are_there() -> None:
    sizes = memory_of([os.getpid(), 2**22 + 1])
    assert sizes.keys() == {os.getpid()}
    assert sizes[os.getpid()] > 2**20


async def test_changes_during_the_first_message_are_in_the_next(clock: Clock) -> None:
    router = Router()
    router.handle("**", lambda _: None)

    async def next_entries(messages: AsyncGenerator[bytes]) -> bytes:
        return await anext(message async for message in messages if message.startswith(b"event: entries"))

    async with lifetime(signals=False), running(router), Console() as console:
        await (await router.emit(Event("before")))
        figures = Figures(Latencies(), Refusals(), console)
        async with aclosing(live(console, figures, SharedMessages())) as messages:
            assert b'"before"' in await next_entries(messages)
            await (await router.emit(Event("meanwhile")))
            assert b'"meanwhile"' in await next_entries(messages)


async def test_a_stream_that_is_cancelled_twice_still_ends_its_reader() -> None:
    ended: list[str] = []

    async def slow_to_end(name: str) -> AsyncGenerator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append(name)

    async def read() -> None:
        async with aclosing(merged(slow_to_end("one"), slow_to_end("other"))) as messages:
            await anext(messages)

    task = asyncio.create_task(read())
    for _ in range(4):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["one", "other"]


# -- words ---------------------------------------------------------------------------------------------------------


def test_the_page_and_the_commands_use_one_word_for_each_action() -> None:
    """A program is suspended and resumed, and a source is held and released."""
    shown = [text.decode() for path, (text, _) in page_files().items() if path.endswith((".js", ".html"))]
    shown = [text for text in shown if "@license" not in text]
    labels = {
        label for text in shown for label in re.findall(r"[>\"'](Suspend|Resume|Hold|Release|Follow)[<\"']", text)
    }
    assert labels == {"Suspend", "Resume", "Hold", "Release", "Follow"}
    helps = [*(each.help for each in COMMANDS.values()), *(each.help for each in lifecycle_commands())]
    for text in (*shown, *helps):
        assert not re.search(r"[>\"'](?:Un)?(?:Pause|Freeze|Continue)\b|\b(?:pause|freeze) (?:the|a|events)\b", text)
