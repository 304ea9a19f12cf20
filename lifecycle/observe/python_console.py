"""`PythonConsole`: a Python prompt inside the running program, for `lifecycle ctl console`.

The code runs in the program's event loop, so code that blocks also blocks the program.
"""

from __future__ import annotations

import ast
import asyncio
import codeop
import contextvars
import inspect
import logging
import platform
import secrets
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._async import start_task
from lifecycle._steering.commands import routers_of
from lifecycle.observe.output import TextQueue, print_to

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.observe.console import Console
    from lifecycle.observe.output import Output

__all__ = ["BusyError", "PythonConsole"]

_log = logging.getLogger("lifecycle.observe")

_FILE = "<console>"

#: How many seconds the running code has to end when the client leaves.
_CANCEL_TIMEOUT = 1.0


class BusyError(Exception):
    """Raised when input arrives while code is running."""


class PythonConsole:
    """The prompt of one client. Printed text and results go to the client instead of the program's output.

    Iterate over `messages` to open the console. Tasks that the code creates continue after the client has left.
    """

    def __init__(self, console: Console, output: Output) -> None:
        #: The name of this console in requests.
        self.id: str = secrets.token_urlsafe(12)
        self._output = output
        self._variables: dict[str, Any] = {
            "asyncio": asyncio,
            "console": console,
            "lifetime": console.lifetime,
            "routers": {router.name: router for router in routers_of(console.lifetime)},
        }
        # Python's own exit() closes stdin, which belongs to the program.
        self._namespace = {"__name__": "__console__", **self._variables, "exit": _leave, "quit": _leave}
        self._compile = codeop.CommandCompiler()
        self._compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        #: The input that is not yet complete.
        self._lines: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._failed = self._left = self._closed = False
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(print_to.set, self.write)
        # Messages for the client.
        self._texts = TextQueue()
        self._prompt: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._waking = False

    # -- messages to the client ------------------------------------------------------------------------------------

    async def messages(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield a greeting, then printed text and prompts. Closing the generator cancels the running code.

        A prompt means that the console accepts input. After ``exit()``, the last message is ``{"left": true}``.
        """
        yield {"console": self.id, "python": platform.python_version(), "variables": sorted(self._variables)}
        self._ask()
        with self._output.replacing():
            try:
                while not self._left:
                    await self._changed.wait()
                    self._changed.clear()
                    for message in self._pending():
                        yield message
                yield {"left": True}
            finally:
                await self._close()

    def _pending(self) -> list[dict[str, Any]]:
        dropped, self._texts.dropped = self._texts.dropped, 0
        text = self._texts.take()
        prompt, self._prompt = self._prompt, None
        found = [{"dropped": dropped} if dropped else None, {"text": text} if text else None, prompt]
        return [message for message in found if message is not None]

    def write(self, text: str) -> bool:
        """Send printed text to the client, from any thread. Return False if the client has left."""
        if self._closed:
            return False
        self._texts.add(text)
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)
        return True

    def _wake(self) -> None:
        self._waking = False
        self._changed.set()

    def _ask(self) -> None:
        self._prompt = {"prompt": "... " if self._lines else ">>> ", "failed": self._failed}
        self._changed.set()

    async def _close(self) -> None:
        self._closed = True
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)
            if not task.done():
                _log.warning("code from `lifecycle ctl console` is still running: it ignored its cancellation")

    # -- input from the client -------------------------------------------------------------------------------------

    def feed(self, text: str) -> None:
        """Add a line or a block of input, and run the code once it is complete.

        Raises:
            BusyError: if code is running.
        """
        if self._task is not None:
            raise BusyError("the console is running code; interrupt it or wait until it asks for input")
        self._failed = False
        self._lines.append(text)
        self._task = start_task(self._run(), name="lifecycle ctl console", context=self._context)
        self._task.add_done_callback(self._finished)

    def interrupt(self) -> None:
        """Cancel the running code, or discard incomplete input."""
        self._lines.clear()
        self.write("KeyboardInterrupt\n")
        if self._task is None:
            self._ask()
        else:
            self._task.cancel()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._failed |= task.cancelled()
        self._ask()

    async def _run(self) -> None:
        """Run the input if it is complete. Errors go to the client, because SystemExit would end the program."""
        try:
            tree = self._parse()
        except (SyntaxError, ValueError, OverflowError) as error:
            self._lines.clear()
            self._fail(traceback.format_exception_only(error))
            return
        try:
            if tree is not None:
                await self._execute(tree)
        except SystemExit:
            self._left = True
        except BaseException as error:
            if _is_cancelled(error):
                raise
            shown = error.__traceback__
            while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
                shown = shown.tb_next
            self._fail(traceback.format_exception(type(error), error, shown))

    def _fail(self, lines: list[str]) -> None:
        self._failed = True
        self.write("".join(lines))

    def _parse(self) -> ast.Module | None:
        """Return the input, or None if it is incomplete. A block typed line by line ends at an empty line."""
        source = "\n".join(self._lines)
        pasted = any("\n" in each for each in self._lines)
        if self._compile(source, _FILE, "exec" if pasted else "single") is None:
            return None
        self._lines.clear()
        return ast.parse(source, _FILE)

    async def _execute(self, tree: ast.Module) -> None:
        """Execute statements. If the last one is an expression, show its value and assign it to ``_``."""
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        await self._evaluate(tree, "exec")
        if isinstance(last, ast.Expr):
            value = await self._evaluate(ast.Expression(last.value), "eval")
            if value is not None:
                self._namespace["_"] = value
                self.write(f"{value!r}\n")

    async def _evaluate(self, tree: ast.Module | ast.Expression, mode: str) -> Any:
        code = compile(tree, _FILE, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(code, self._namespace)  # noqa: S307  # the program's own user enabled this
        return await value if code.co_flags & inspect.CO_COROUTINE else value


def _is_cancelled(error: BaseException) -> bool:
    """Return whether ``error`` is the cancellation of our task, not of a task that the code awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _leave() -> None:
    """Leave the console. The program continues."""
    raise SystemExit
