"""A headless Chromium that tests control over its DevTools protocol: pages, keys, clicks and content."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.browsers import browsing

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

__all__ = ["LIMIT", "Page", "chromium", "opened"]

#: Seconds that any step may take on a busy machine.
LIMIT = 30.0


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Run a browser and yield its address. On exit, none of its processes remain."""
    # A page in the back-forward cache would continue to read its stream.
    options = "--disable-features=BackForwardCache", "--remote-debugging-port=0"
    with browsing("about:blank", profile, *options) as browser:
        yield _address(profile / "DevToolsActivePort", browser)


def _address(file: Path, browser: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and browser.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            port, path = file.read_text().split()
            return f"ws://127.0.0.1:{port}{path}"
        time.sleep(0.02)
    raise AssertionError(f"chromium did not start; status {browser.poll()}")


@asynccontextmanager
async def opened(
    address: str, url: str, *, width: int = 1200, height: int = 800, dark: bool = False, scale: float = 1
) -> AsyncGenerator[Page]:
    """Open ``url`` in the browser's only tab, because a new tab per test would take twice as long."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0, heartbeat=None) as socket,
    ):
        page = Page(socket)
        hearing = asyncio.create_task(page.hear())
        try:
            attached = await page.call("Target.attachToTarget", targetId=await _tab(page), flatten=True)
            page.session = attached["sessionId"]
            try:
                await page.call("Runtime.enable")
                await page.call("Log.enable")
                await page.look(width, height, dark=dark, scale=scale)
                await page.call("Page.navigate", url=url)
                yield page
            finally:
                await page.call("Runtime.evaluate", expression="sessionStorage.clear(), localStorage.clear()")
                await page.call("Page.navigate", url="about:blank")
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])


async def _tab(page: Page) -> str:
    targets = (await page.call("Target.getTargets"))["targetInfos"]
    found = [each["targetId"] for each in targets if each["type"] == "page"]
    return found[0] if found else str((await page.call("Target.createTarget", url="about:blank"))["targetId"])


class Page:
    """A page in the browser: its content, and a user's actions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.session: str | None = None
        #: Errors on the console, including violations of the content security policy.
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def hear(self) -> None:
        async for message in self._socket:
            response = json.loads(message.data)
            waiter = self._answers.pop(response.get("id", 0), None)
            if waiter is not None and not waiter.done():
                waiter.set_result(response)
            elif response.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(response["params"]["exceptionDetails"])[:2000])
            elif response.get("method") == "Log.entryAdded" and response["params"]["entry"]["level"] == "error":
                self.complaints.append(response["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        waiter = self._answers[number] = asyncio.get_running_loop().create_future()
        target = {} if self.session is None else {"sessionId": self.session}
        await self._socket.send_json({"id": number, "method": method, "params": params, **target})
        async with asyncio.timeout(LIMIT):
            response = await waiter
        assert "error" not in response, (method, response)
        return dict(response["result"])

    async def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Emulate a screen of this size, with or without a preference for dark colours."""
        phone = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        response = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in response, (script, response)
        return response["result"].get("value")

    async def until(self, script: str) -> Any:
        """Return the value of a JavaScript expression as soon as it is truthy."""
        end = time.monotonic() + LIMIT
        while not (value := await self._tried(script)):
            if time.monotonic() > end:
                shown = await self.run("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{shown}\n{self.complaints}")
            await asyncio.sleep(0.02)
        return value

    async def _tried(self, script: str) -> Any:
        """Return the value of a JavaScript expression, or None while the page navigates to the next document."""
        script = f"(() => {{ try {{ const it = {script}; return it instanceof Node ? true : it; }} catch {{ }} }})()"
        response = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return response["result"].get("value")

    async def click(self, selector: str) -> None:
        """Click the centre of an element with the mouse."""
        found = f"document.querySelector({json.dumps(selector)})"
        middle = "(box) => box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null"
        scrolled = f"{found}.scrollIntoView({{block: 'nearest', behavior: 'instant'}})"
        x, y = await self.until(f"({scrolled}, ({middle})({found}.getBoundingClientRect()))")
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, shift: bool = False, text: str = "") -> None:
        """Press a key. ``text`` is the text that it types, if any."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "ArrowDown": 40,
            "ArrowRight": 39,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "End": 35,
        }
        written = {"text": text or ("\r" if key == "Enter" else "")}
        modifiers = 8 if shift else 0
        code = codes.get(key, ord(key[0].upper()))
        down = {"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", **down, **{name: value for name, value in written.items() if value})
        await self.call(
            "Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers
        )

    async def picture(self, path: Path) -> None:
        response = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(response["data"]))
