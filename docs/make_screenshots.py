"""Take the screenshots of `Dashboard` in docs/_static: ``python -m docs.make_screenshots``.

A small example shop runs, and a headless Chromium opens its dashboard. Only the time of day varies, so new screenshots
differ only where the page has changed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path

from lifecycle import Backoff, Event, Router, Spec, Supervisor, TickerSource, lifetime
from lifecycle.flows import Flows, linear, task, unordered
from lifecycle.observe import Dashboard
from lifecycle.testing import running
from lifecycle.workers.pool import Pool
from tests.realtime.observe.chrome import Page, chromium, opened

STATIC = Path(__file__).with_name("_static")
TOKEN = "shown-in-no-picture"  # noqa: S105  # of a program that runs for a minute
SLEEP = [sys.executable, "-c", "import time; time.sleep(1e5)"]

router = Router("shop")


@router.on("file/*")
async def rebuild(event: Event) -> None:
    await asyncio.sleep(0.006)
    await router.emit(Event("build/page", {"because": event.topic}))


@router.on("build/*")
async def build(_: Event) -> None:
    await asyncio.sleep(0.024)


@router.on("order/*", concurrency=4)
async def ordered(event: Event) -> None:
    await asyncio.sleep(0.045)
    await router.emit(Event("mail/send", event.data))


@router.on("mail/*", concurrency=4)
async def mail(event: Event) -> None:
    await asyncio.sleep(0.11)
    if event.data["order"] % 7 == 0:
        raise ConnectionError("smtp.example.org: 421 try again later")


@router.on("tick/**")
def tick(_: Event) -> None:
    """Do nothing."""


@router.command
async def deploy(_: object) -> None:
    """Deploy TARGET."""


@router.command
async def vacuum(_: object) -> None:
    """Vacuum the database."""


class Renderer:
    """The object that each pool worker loads."""

    async def render(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def forever() -> None:
    await asyncio.Event().wait()


async def importer() -> None:
    await asyncio.sleep(7)
    raise KeyError("price")


@task
async def fetch() -> None:
    await asyncio.sleep(0.5)


@task
async def compile_pages() -> None:
    await asyncio.sleep(0.5)


@task
async def test_unit() -> None:
    await asyncio.sleep(1)


@task
async def test_web() -> None:
    await asyncio.sleep(600)


@task
async def test_links() -> None:
    await asyncio.sleep(600)


@task
async def publish() -> None:
    """This task is not reached while the screenshots are taken."""


async def live(pool: Pool) -> None:
    """Emit ten events per second, as a busy shop would."""
    topics = cycle(["file/modified", "order/new", "file/added", "order/new", "order/paid", "file/modified"])
    for number, topic in enumerate(topics):
        data = {"path": f"src/page{number % 40}.html"} if topic.startswith("file") else {"order": number}
        router.emit_nowait(Event(topic, data))
        if number % 4 == 0:
            asyncio.get_running_loop().create_task(pool.call("render", 0.05 + number % 9 / 20))
        await asyncio.sleep(0.1)


def shop() -> Supervisor:
    web = Supervisor("web", *(Spec(f"web-{number}", SLEEP) for number in range(1, 4)))
    jobs = Supervisor(
        "jobs",
        Spec("mailer", forever),
        Spec("search-index", forever),
        Spec("importer", importer, backoff=Backoff(4.0)),
        Spec("thumbnails", forever),
        Spec("legacy-sync", importer, restart="never"),
    )
    return Supervisor("shop", Spec("web", lambda: web), Spec("jobs", lambda: jobs), Spec("cache", SLEEP))


async def main(address: str) -> None:
    """Run the shop and take its screenshots."""
    router.add_source(TickerSource(1.0))
    pages = unordered("checks", test_unit, test_web, test_links)
    flow = linear("release", fetch, compile_pages, pages, publish)
    async with AsyncExitStack() as held:
        await held.enter_async_context(lifetime(signals=False))
        await held.enter_async_context(running(router))
        await held.enter_async_context(shop())
        pool = await held.enter_async_context(Pool("render", "docs.make_screenshots:Renderer", size=(4, 6)))
        flows = await held.enter_async_context(Flows())
        dashboard = await held.enter_async_context(Dashboard(token=TOKEN))
        flows.start(flow, id="release-42")
        load = asyncio.create_task(live(pool))
        await pictures(address, f"{dashboard.url}/#token={TOKEN}")
        load.cancel()


async def pictures(address: str, url: str) -> None:
    async with opened(address, url, width=1280, height=800) as page:
        await asyncio.sleep(62)  # one minute of rates
        await page.until("document.querySelector('.workers .row.bad')")
        await page.picture(STATIC / "dashboard.png")
        await page.look(1280, 800, dark=True)
        mail_row = "[...document.querySelectorAll('.events .row')].find((row) => row.textContent.includes('failed'))"
        await page.until(mail_row)
        await page.run(f"{mail_row}.querySelector('button').click()")
        await page.until("document.querySelector('.trace li')")
        await settled(page, "dashboard-trace")
        await page.press("Escape")
        await page.look(1280, 620)
        await page.press(":", text=":")
        await page.until("document.querySelector('#command-words li')")
        await page.type("status")
        await page.press("Enter")
        await page.until("document.querySelector('.said .good')")
        await settled(page, "dashboard-commands")
        await page.press("Escape")
        await page.look(1280, 400)
        await page.run("document.querySelector('#flows').scrollIntoView({block: 'start', behavior: 'instant'})")
        await settled(page, "dashboard-flow")


async def settled(page: Page, name: str) -> None:
    """Take a screenshot after animations have ended."""
    await asyncio.sleep(0.7)
    await page.picture(STATIC / f"{name}.png")


if __name__ == "__main__":
    # The name of the program on the page.
    sys.argv[0], sys.modules["__main__"].__spec__ = "shop", None
    logging.disable(logging.CRITICAL)
    STATIC.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as found:
        asyncio.run(main(found))
