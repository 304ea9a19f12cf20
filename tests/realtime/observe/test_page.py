"""The `Dashboard` page in a real browser: its content, its buttons, and its restrictions."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Event, Router
from lifecycle.errors import FlowCancelled
from lifecycle.flows import Flows, linear, step, task, unordered, wait_for, workflow
from lifecycle.observe import Dashboard
from lifecycle.runtime import lifetime
from lifecycle.sources import GitHub, TickerSource, WebhookSource
from lifecycle.testing import running
from lifecycle.workers import Spec, Supervisor
from tests.realtime.observe.chrome import LIMIT, chromium, opened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from tests.realtime.observe.chrome import Page

pytestmark = [pytest.mark.engine("chromium"), pytest.mark.timeout(120)]

TOKEN = "a-token-of-a-user"
HOSTILE = "ev\"il' <img src=x onerror=pwned=1>\n</script>\u202e\U0001f98a"
#: The hostile text as the page shows it.
SHOWN = "ev\"il' <img src=x onerror=pwned=1>\u240a</script>\\u202e\U0001f98a"

#: A script that returns the classes of elements wider than the screen, except those that scroll.
TOO_WIDE = """[...document.querySelectorAll("body *")].filter(
  (each) => each.getBoundingClientRect().right > innerWidth + 1
    && !each.closest("nav, .scroll, .rows, .row, .head, .skip, dialog")).map((each) => each.outerHTML.slice(0, 90))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as address:
        yield address


@asynccontextmanager
async def shown(
    browser: str, router: Router, *things: Any, locked: bool = False, **how: Any
) -> AsyncGenerator[tuple[Page, Dashboard]]:
    """Yield the page of a program with ``router`` and ``things``. Unless ``locked``, it has received the state."""
    async with AsyncExitStack() as held:
        await held.enter_async_context(lifetime(signals=False))
        await held.enter_async_context(running(router))
        for each in things:
            await held.enter_async_context(each)
        dashboard = await held.enter_async_context(Dashboard(token=TOKEN))
        url = dashboard.url + ("/" if locked else f"/#token={TOKEN}")
        page = await held.enter_async_context(opened(browser, url, **how))
        if not locked:
            await page.until("document.querySelector('.link.open')")
            await page.until("document.querySelector('.who h1').textContent !== '\u2026'")
        yield page, dashboard


async def forever() -> None:
    await asyncio.Event().wait()


def row(name: str) -> str:
    """Return the JavaScript expression for a worker's row."""
    rows = "[...document.querySelectorAll('.workers .row')]"
    return f"{rows}.find((row) => row.querySelector('bdi').textContent === {json.dumps(name)})"


def status_of(name: str) -> str:
    return f"{row(name)}.querySelector('.status').textContent"


# -- content -------------------------------------------------------------------------------------------------------


async def test_the_details_of_a_process_contain_its_latest_output(browser: str) -> None:
    code = "import time; print('first', flush=True); time.sleep(0.5); print('<b>', flush=True); time.sleep(600)"
    group = Supervisor("group", Spec("web", [sys.executable, "-c", code], output=lambda line, stream: None))
    async with shown(browser, Router(), group) as (page, _):
        await page.run("document.querySelector('#workers-rows').focus()")
        await page.press("ArrowDown")
        await page.press("ArrowDown")
        await page.until(f"{row('web')}.ariaSelected === 'true'")
        await page.press("Enter")
        await page.until("document.querySelector('#inspector .output pre')?.textContent === 'first\\n<b>'")


async def test_a_crash_is_seen_and_so_is_the_restart(browser: str) -> None:
    crash = asyncio.Event()

    async def fragile() -> None:
        await crash.wait()
        # Setting the event has woken both workers.
        crash.clear()
        raise ValueError("no such price")

    shop = Supervisor("shop", Spec("web", forever), Spec("cart", fragile), Spec("once", fragile, restart="never"))
    async with shown(browser, Router(), shop) as (page, _):
        await page.until(f"{status_of('cart')} === 'running' && {status_of('once')} === 'running'")
        crash.set()
        await page.until(f"{status_of('once')} === 'failed'")
        await page.until(
            f"{row('cart')}.querySelector('.warm').textContent === '1' && {status_of('cart')} === 'running'"
        )
        assert page.complaints == []


async def test_rates_latencies_and_events_are_shown_and_a_click_shows_the_trace(browser: str) -> None:
    router = Router("main")

    @router.on("order/*")
    async def ordered(event: Event) -> None:
        await router.emit(Event("mail/send", {"for": event.topic}))

    @router.on("mail/*")
    async def fail(_: Event) -> None:
        raise ConnectionError("421 try again later")

    async with shown(browser, router) as (page, _):
        await router.emit(Event("order/new"))
        mail = "[...document.querySelectorAll('.events .row')].find((row) => row.textContent.includes('mail/send'))"
        await page.until(f"{mail}.querySelector('.status').textContent === 'failed'")
        await page.until(
            "[...document.querySelectorAll('.routes .row')].some((row) => / [mµ]?s/.test(row.textContent))"
        )
        await page.run(f"{mail}.querySelector('button').click()")
        await page.until("document.querySelectorAll('.trace li').length === 2")
        lines = await page.run(
            "[...document.querySelectorAll('.trace li')].map((each) => each.querySelector('bdi').textContent)"
        )
        assert lines == ["order/new", "mail/send"]
        assert "421 try again later" in await page.run("document.querySelector('aside .error').textContent")
        await page.press("Escape")
        await page.until("!document.querySelector('aside')")
        await page.run("document.querySelector('#events-filter').focus()")
        await page.type("order/*")
        await page.until(f"!{mail} && document.querySelectorAll('.events .row').length === 1")


async def test_refused_requests_are_counted_next_to_their_source(browser: str) -> None:
    router = Router()
    source = WebhookSource(port=0, verify=GitHub("secret"))
    router.add_source(source)
    async with shown(browser, router) as (page, _), aiohttp.ClientSession() as client:
        for _ in range(2):
            async with client.post(source.url) as answer:
                assert answer.status == 401
        await page.until("document.querySelector('#sources .line').textContent.includes('2 \u00d7 401 refused')")


async def test_a_flow_is_shown_as_a_live_diagram(browser: str) -> None:
    go_on = asyncio.Event()

    @task
    async def fetch() -> None:
        pass

    @task
    async def check() -> None:
        await go_on.wait()

    @task
    async def publish() -> None:
        pass

    deploy = linear("deploy", fetch, unordered("checks", check), publish)
    flows = Flows()
    async with shown(browser, Router(), flows) as (page, _):
        flow = flows.start(deploy)
        box = "[...document.querySelectorAll('.diagram .box')].find((box) => box.ariaLabel.startsWith('check:'))"
        await page.until(f"{box}.classList.contains('run')")
        assert await page.run("document.querySelectorAll('.diagram .edge').length") == 2
        names = await page.run("[...document.querySelectorAll('.diagram .box')].map((box) => box.ariaLabel)")
        assert sorted(names) == ["check: running", "fetch: success", "publish: pending"]
        go_on.set()
        await flow


@pytest.mark.keeps_tasks
async def test_a_workflow_that_waits_is_shown_and_signalled_and_another_is_cancelled(browser: str) -> None:
    async def reserve(item: str) -> dict[str, str]:
        return {"item": item}

    @workflow
    async def order(name: str) -> Any:
        await step(reserve, name)
        return await wait_for("approval")

    flows = Flows()
    async with shown(browser, Router(), flows) as (page, _):
        run, other = flows.start(order, "tea", id="o-1"), flows.start(order, "cup", id="o-2")
        name = "[...document.querySelectorAll('.stored')].find((each) => each.textContent.includes('{}'))"
        for each in ("o-1", "o-2"):
            await page.until(name.format(each))
        await page.run(f"{name.format('o-1')}.querySelector('button').click()")
        await page.until("document.querySelectorAll('.steps li').length === 2")
        assert "1 reserve" in await page.run("document.querySelector('.steps').textContent")
        await page.click("#flow-signal")
        await page.until("document.querySelector('#signal-name').value === 'approval'")
        await page.click("#signal-data")
        await page.type('{"by": "a b"}')
        await page.click("#dialog-signal .primary")
        assert await run == {"by": "a b"}
        await page.run(f"{name.format('o-2')}.querySelector('button').click()")
        await page.until("document.querySelector('#inspector').textContent.includes('o-2')")
        await page.click("#flow-cancel")
        await page.click("#dialog-confirm .danger")
        with pytest.raises(FlowCancelled):
            await other
        await page.until("document.querySelector('#flow-retry')")
        assert page.complaints == []


async def test_names_are_shown_and_never_executed(browser: str) -> None:
    router = Router(HOSTILE)
    router.handle("evil/*", print)
    shop = Supervisor("shop", Spec(HOSTILE, forever))
    async with shown(browser, router, shop) as (page, _):
        await page.until(f"{status_of(SHOWN)} === 'running'")
        await router.emit(Event("evil/<b>x", HOSTILE))
        await page.until("document.querySelector('.events .row bdi').textContent === 'evil/<b>x'")
        await page.run("document.querySelector('.events .row button').click()")
        await page.until("document.querySelector('aside h2').textContent === 'evil/<b>x'")
        await page.run(f"{row(SHOWN)}.click()")
        await page.until(f"document.querySelector('aside h2').textContent === {json.dumps(SHOWN)}")
        assert await page.run("typeof pwned") == "undefined"
        assert await page.run("document.querySelectorAll('img, b b, script:not([src])').length") == 0
        await page.click("aside .buttons button")
        await page.until("document.querySelector('.toasts .good')")
        await page.until(f"{row(SHOWN)}.querySelector('.status').textContent === 'running'")
        assert page.complaints == []


async def test_hundreds_of_workers_and_thousands_of_events_are_few_elements(browser: str) -> None:
    router = Router()
    router.handle("**", lambda _: None)
    shop = Supervisor("shop", *(Spec(f"worker-{number}", forever) for number in range(200)))
    async with shown(browser, router, shop) as (page, _):
        await page.until("document.querySelector('#workers .note').textContent.trim() === '201'")
        for number in range(600):
            await router.emit(Event(f"event/{number}"))
        await page.until("document.querySelector('.events .row bdi').textContent === 'event/599'")
        assert await page.run("document.querySelectorAll('.row').length") < 120
        await page.run("document.querySelector('#workers-rows').scrollTop = 1e6")
        await page.until(f"{row('worker-199')}")
        # If a reader has scrolled down, the page keeps its position and shows that there are new events.
        await page.run("document.querySelector('#events-rows').scrollTop = 400")
        await page.until("document.querySelector('#events-rows').scrollTop === 400")
        await page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await router.emit(Event("event/last"))
        await page.until("document.querySelector('.fresh')")
        await page.click(".fresh")
        await page.until("document.querySelector('.events .row bdi').textContent === 'event/last'")


# -- actions -------------------------------------------------------------------------------------------------------


async def test_buttons_suspend_hold_and_stop_the_program_and_it_knows_it(browser: str) -> None:
    suspended, stopped = asyncio.Event(), asyncio.Event()
    router = Router()
    router.handle("lifecycle/suspend", lambda _: suspended.set())
    router.handle("lifecycle/shutdown", lambda _: stopped.set())
    router.add_source(TickerSource(3600.0))
    async with shown(browser, router) as (page, dashboard):
        assert TOKEN not in await page.run("location.href"), "the token was not removed from the address bar"
        await page.click("#do-suspend")
        await asyncio.wait_for(suspended.wait(), LIMIT)
        await page.until("document.querySelector('.toasts .good').textContent.includes('suspend')")
        await page.click("#sources button")
        await page.until("document.querySelector('#sources .status').textContent === 'held'")
        assert [source.held for source in router.sources()] == [True]
        # Stopping the program requires a confirmation.
        await page.click("#do-stop")
        await page.until("document.querySelector('#dialog-confirm').open")
        await page.press("Escape")
        await page.until("!document.querySelector('#dialog-confirm').open")
        assert not stopped.is_set()
        await page.click("#do-stop")
        await page.click("#dialog-confirm .danger")
        await asyncio.wait_for(stopped.wait(), LIMIT)
        await dashboard.__aexit__(None, None, None)
        await page.until("document.querySelector('.link').textContent.includes('not connected')")


async def test_without_a_token_the_page_shows_nothing_and_a_wrong_one_is_refused(browser: str) -> None:
    done = asyncio.Event()
    router = Router("secret-name")
    router.handle("lifecycle/reload", lambda _: done.set())
    async with shown(browser, router, locked=True) as (page, _):
        await page.until("document.querySelector('#dialog-token').open")
        assert "this page needs the program's token" in await page.run("document.querySelector('main').textContent")
        assert not await page.run("document.querySelector('.buttons #do-stop, .tiles, nav a')")
        assert page.complaints == [], "the page made a request that must be refused"
        await page.type("wrong")
        await page.press("Enter")
        await page.until("document.querySelector('#token-wrong').textContent === 'The token is wrong.'")
        assert not done.is_set()
        assert await page.run("sessionStorage.length") == 0
        await page.run("document.querySelector('#token').value = ''")
        await page.type(TOKEN)
        await page.press("Enter")
        await page.until("!document.querySelector('#dialog-token').open")
        await page.click("#do-reload")
        await asyncio.wait_for(done.wait(), LIMIT)
        assert ["401" in complaint for complaint in page.complaints] == [True]
        # The page forgets the token, and everything that it knows about the program.
        await page.click("#do-unlock")
        await page.until("document.querySelector('#dialog-token').open && !document.querySelector('#do-reload')")
        assert await page.run("sessionStorage.length") == 0
        assert "secret-name" not in await page.run("document.documentElement.textContent")


async def test_only_buttons_that_the_program_has_routes_for_are_shown(browser: str) -> None:
    router = Router()
    router.command("reload", lambda _: None)
    later = Router("later")
    later.handle("lifecycle/*", lambda _: None)
    words = "[...document.querySelectorAll('.top .buttons button')].map((each) => each.id).join()"
    async with shown(browser, router) as (page, _):
        await page.until(f"{words} === 'do-reload,do-stop,do-command'")
        async with running(later):
            await page.until(f"{words} === 'do-suspend,do-resume,do-reload,do-stop,do-command'")


# -- the connection ------------------------------------------------------------------------------------------------

#: A script that speeds up all timers, and hides the page when the test asks for it.
QUICK = """(() => {
  const own = window.setTimeout;
  window.setTimeout = (act, wait, ...more) => own(act, wait / FACTOR, ...more);
  Object.defineProperty(document, "hidden", { get: () => Boolean(window.isHidden) });
  window.hide = (hidden) => { window.isHidden = hidden; document.dispatchEvent(new Event("visibilitychange")); };
})()"""


class Relay:
    """A proxy between a browser and a dashboard. While it is cut, connections stay open but no data passes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: list[asyncio.StreamWriter] = []
        #: The number of connections.
        self.count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += writer, onward
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                await self._passing.wait()
                writer.write(piece)
            writer.close()

    def cut(self) -> None:
        self._passing.clear()

    def mend(self) -> None:
        self._passing.set()

    def close(self) -> None:
        self.mend()
        for writer in self._writers:
            writer.transport.abort()


async def test_a_page_that_is_seen_again_stays_live_after_a_restart_of_the_program(browser: str) -> None:
    """The stream may have ended while the page was hidden: the idle timer must not outlive the stream."""
    async with shown(browser, Router()) as (page, dashboard):
        await page.run(QUICK.replace("FACTOR", "20"))
        await page.run("hide(true)")
        port = int(dashboard.url.rpartition(":")[2])
        await dashboard.__aexit__(None, None, None)
        await page.until("document.querySelector('.link.closed')")
        await page.run("hide(false)")
        async with Dashboard(port=port, token=TOKEN):
            await page.until("document.querySelector('.link.open')")
            await page.run("new Promise((done) => setTimeout(done, 40_000))")
            assert await page.run("document.querySelector('.link').textContent") == "live"
            await page.run("hide(true)")
            await page.until("document.querySelector('.link.resting')")
            await page.run("hide(false)")
            await page.until("document.querySelector('.link.open')")
        await dashboard.__aenter__()


async def test_a_page_shows_a_program_that_has_another_token_since_its_restart(browser: str) -> None:
    """Until it has the new token, the page shows nothing, like a page that was opened without a token."""
    async with shown(browser, Router()) as (page, dashboard):
        port = int(dashboard.url.rpartition(":")[2])
        await dashboard.__aexit__(None, None, None)
        await page.until("document.querySelector('.link.closed')")
        async with Dashboard(port=port, token="another-token-of-the-user"):
            await page.until("document.querySelector('#dialog-token[open]')")
            await page.type("another-token-of-the-user")
            await page.press("Enter")
            await page.until("document.querySelector('.link.open')")
        await dashboard.__aenter__()


async def test_a_silent_connection_is_given_up_and_opened_again(browser: str) -> None:
    async with AsyncExitStack() as held:
        await held.enter_async_context(lifetime(signals=False))
        dashboard = await held.enter_async_context(Dashboard(token=TOKEN))
        relay = Relay(int(dashboard.url.rpartition(":")[2]))
        server = await held.enter_async_context(await asyncio.start_server(relay.serve, "127.0.0.1", 0))
        held.callback(relay.close)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/#token={TOKEN}"
        page = await held.enter_async_context(opened(browser, url))
        await page.until("document.querySelector('.link.open')")
        await page.run(QUICK.replace("FACTOR", "5"))
        # An event has arrived since the timers were sped up.
        await page.run("document.querySelector('.who .number').dataset.before = 'yes'")
        relay.cut()
        await page.until("document.querySelector('.link.closed')")
        relay.mend()
        await page.until("document.querySelector('.link.open')")


async def test_arrows_recall_all_lines_and_the_one_that_was_begun(browser: str) -> None:
    router = Router()
    router.command("deploy", lambda _: None)
    line = "document.querySelector('#command').value"
    async with shown(browser, router) as (page, _):
        await page.press(":", text=":")
        await page.until("document.activeElement.id === 'command'")
        for number, words in enumerate(("deploy one", "deploy two", "deploy two"), 1):
            await page.type(words)
            await page.press("Enter")
            await page.until(f"document.querySelectorAll('.said .good').length === {number} && {line} === ''")
        await page.type("begun")
        for key, text in (
            ("ArrowUp", "deploy two"),
            ("ArrowUp", "deploy one"),
            ("ArrowUp", "deploy one"),
            ("ArrowDown", "deploy two"),
            ("ArrowDown", "begun"),
            ("ArrowDown", "begun"),
        ):
            await page.press(key)
            await page.until(f"{line} === {json.dumps(text)}")


async def test_the_tree_names_the_row_that_the_keys_are_at_and_keeps_the_focus(browser: str) -> None:
    shop = Supervisor("shop", *(Spec(f"w{number}", forever) for number in range(60)))
    at = (
        "((tree) => document.getElementById(tree.getAttribute('aria-activedescendant'))"
        "?.querySelector('bdi').textContent)(document.querySelector('#workers-rows'))"
    )
    async with shown(browser, Router(), shop) as (page, _):
        await page.until(row("w1"))
        await page.run("document.querySelector('#workers-rows').focus()")
        assert await page.run(at) is None
        for key, name in (("ArrowDown", "shop"), ("ArrowDown", "w0"), ("End", "w59"), ("ArrowUp", "w58")):
            await page.press(key)
            await page.until(f"{at} === '{name}'")
        assert await page.run("document.activeElement.id") == "workers-rows"
        roles = "[...document.querySelectorAll('#workers-rows')].map((each) => each.role).join()"
        assert await page.run(roles) == "treegrid"
        # Rows outside the visible part are not in the document, so no element has the name.
        await page.run("document.querySelector('#workers-rows').scrollTop = 0")
        await page.until(f"{at} === undefined && !document.querySelector('[aria-activedescendant]')")
        assert page.complaints == []


# -- different viewers ---------------------------------------------------------------------------------------------


async def test_everything_is_reached_by_keys(browser: str) -> None:
    router = Router()
    lines: list[Any] = []
    router.handle("one/*", lambda _: None)
    router.command("deploy", lambda event: lines.append(event.args), help="Bring it out.", complete=("prod", "test"))
    router.handle("lifecycle/suspend", lambda _: None)
    shop = Supervisor("shop", Spec("web", forever), Spec("cart", forever))
    async with shown(browser, router, shop) as (page, _):
        await page.until(f"{status_of('cart')} === 'running'")
        met = []
        for _ in range(34):
            await page.press("Tab")
            met.append(
                await page.run(
                    "((at) => at.id || at.getAttribute('aria-label') || at.textContent.trim())(document.activeElement)"
                )
            )
            if not await page.run("document.activeElement === document.body"):
                ring = await page.run("getComputedStyle(document.activeElement).outlineStyle")
                assert ring != "none", f"no focus ring around {met[-1]}"
        for wanted in ("do-suspend", "do-stop", "do-unlock", "Routes", "workers-rows", "events-filter", "routes-rows"):
            assert wanted in met, met
        await page.run("document.querySelector('#workers-rows').focus()")
        await page.press("ArrowDown")
        await page.press("ArrowDown")
        await page.until(f"{row('web')}.ariaSelected === 'true'")
        await page.press("ArrowUp")
        await page.press("ArrowLeft")
        await page.until(f"!{row('web')}")
        await page.press("ArrowRight")
        await page.until(row("web"))
        await page.press("Enter")
        await page.until("document.activeElement.id === 'inspector'")
        await page.press("Escape")
        await page.until("document.activeElement.id === 'workers-rows'")
        await router.emit(Event("one/event"))
        await page.until("document.querySelector('.events .row')")
        await page.run("document.querySelector('#events-rows').focus()")
        await page.press("ArrowDown")
        await page.until("document.activeElement.textContent === 'one/event'")
        await page.press("Enter")
        await page.until("document.querySelector('aside h2').textContent === 'one/event'")
        await page.press("Escape")
        await page.press("?", text="?")
        await page.until("document.querySelector('#dialog-help').open")
        await page.press("Escape")
        await page.press(":", text=":")
        await page.until("document.activeElement.id === 'command' && document.querySelector('#command-words li')")
        await page.type("dep")
        await page.press("Tab")
        await page.until(
            "[...document.querySelectorAll('#command-words b')].some((each) => each.textContent === 'prod')"
        )
        await page.type("prod 'a b'")
        await page.press("Enter")
        await page.until("document.querySelector('.said .good')")
        assert lines == [("prod", "a b")]


async def test_a_phone_needs_no_scrolling_to_the_side(browser: str) -> None:
    router = Router("a-router")
    router.handle("a/very/long/pattern/that/goes/on/and/on/for/much/longer/than/any/phone/is/wide/**", print)
    router.add_source(TickerSource(3600.0))
    shop = Supervisor("shop-with-a-long-name-that-goes-on", Spec("w" * 200, forever), Spec("web", forever))
    async with shown(browser, router, shop, width=360, height=740) as (page, _):
        await page.until(f"{status_of('web')} === 'running'")
        await router.emit(
            Event("a/very/long/pattern/that/goes/on/and/on/for/much/longer/than/any/phone/is/wide/x", "y" * 300)
        )
        await page.until("document.querySelector('.events .row')")
        # The tab was as wide as a desktop screen before.
        await page.until("innerWidth === 360 && document.documentElement.scrollWidth === 360")
        await page.until(f"!{TOO_WIDE}.length")
        await page.run(f"{row('web')}.click()")
        await page.until("document.querySelector('aside').getBoundingClientRect().width === 360")
        for each in ("token", "command", "help", "confirm"):
            dialog = f"document.querySelector('#dialog-{each}')"
            assert await page.run(f"({dialog}.showModal(), {dialog}.getBoundingClientRect().right)") <= 360
            await page.run(f"{dialog}.close()")


async def test_light_and_dark_follow_the_system_until_the_user_chooses(browser: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)"
    brightness = f"{colour}.slice(0, 3).map(Number).reduce((one, other) => one + other)"
    async with shown(browser, Router(), dark=True) as (page, dashboard):
        assert await page.run(brightness) < 150
        await page.look(1200, 800, dark=False)
        await page.until(f"{brightness} > 600")
        await page.press("t", text="t")
        await page.until(f"{brightness} < 150")
        await page.call("Page.navigate", url=dashboard.url + "/")
        await page.until("document.querySelector('.link.open')")
        assert await page.run(brightness) < 150
