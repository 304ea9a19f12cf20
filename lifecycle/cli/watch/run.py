"""`lifecycle watch`: from the command line to the exit status."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any

from lifecycle._steering.answers import current_answer, refused, reply
from lifecycle._util import file_mode
from lifecycle.cli.files import permissions_checked
from lifecycle.cli.logs import console_for, logging_to
from lifecycle.cli.output import DONE, FAILED, ConfigError, UsageError
from lifecycle.cli.paths import PathRules, own_output
from lifecycle.cli.streams import Output, threaded_output
from lifecycle.cli.watch.launcher import Launcher, handover, interpreter, own_reload_option, stdio_mode
from lifecycle.cli.watch.runner import Runner
from lifecycle.cli.watch.session import Session, handle_changes, watching
from lifecycle.cli.watch.settings import find_table, watch_settings
from lifecycle.errors import SourceFailed
from lifecycle.events import SignalEvent
from lifecycle.handlers import SuspendHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextlib import AbstractContextManager

    from lifecycle.cli.output import Console
    from lifecycle.cli.watch.endpoints import LiveReload
    from lifecycle.cli.watch.launcher import Handover, StdioMode
    from lifecycle.cli.watch.session import ChangeSource
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.cli.watch.terminal import Foreground
    from lifecycle.control import Router
    from lifecycle.runtime.mains import AnyMain

    _SignalHandlers = Mapping[signal.Signals, Callable[[], None]]

__all__ = ["watch"]

#: Help texts for the standard prompt commands, adapted to a watched command.
_HELP = {
    "suspend": "Suspend the command, and hold changes until resume.",
    "resume": "Resume the command, or restart it if something has changed.",
    "reload": "React as if a file had changed.",
    "terminate": "Suspend the command, then stop it and quit.",
    "quit": "Stop the command and quit.",
    "status": "Show the state of the command.",
}


def watch(typed: Mapping[str, Any]) -> int:
    """Watch files and run the command until the user or a signal stops both, and return the exit status.

    Raises:
        CliError: if an error is detected before the command starts.
    """
    here = Path.cwd()
    with permissions_checked():
        settings = watch_settings(typed, find_table(here))
        _require_paths(settings, typed=bool(typed.get("paths") or typed.get("watch_non_recursive")))
    console = _console(settings)
    with _output(settings, console) as output, handover(settings.socket) as socket, logging_to(console):
        with permissions_checked():
            program = _Program(settings, here, console, socket)
        if socket is not None:
            console.info(f"listening on {socket} for the command")
        status = program.run(*typed.get("beside", ()))
        # The status is 0 unless a run has failed: otherwise, only a stop ends the program.
        output.is_stopped = status == DONE
        return status


def _output(settings: Settings, console: Console) -> AbstractContextManager[Output]:
    """Return a context manager in which output cannot block the event loop. A prompt writes to the terminal itself."""
    return nullcontext(Output()) if settings.prompt else threaded_output(console.not_shown)


def _console(settings: Settings) -> Console:
    console = replace(console_for(settings.log_format), quiet=settings.quiet)
    return console if settings.color == "auto" else replace(console, colour=settings.color == "always")


class _Program:
    """The components of a watched command, connected by a router.

    Raises:
        CliError: for any error that can be detected before the command starts.
    """

    def __init__(self, settings: Settings, here: Path, console: Console, socket: Handover | None) -> None:
        self._settings = settings
        self._console = console
        mode = stdio_mode(settings)
        foreground = _foreground() if mode == "foreground" else None
        self._launcher = Launcher(settings, mode, foreground, socket)
        program = interpreter(self._launcher.argv, os.environ)
        rules = PathRules(settings, here, outputs=own_output())
        live = self._live_reload()
        self._runner = Runner(
            self._launcher, settings, console, on_ready=live.notify if live is not None else lambda: None
        )
        suspender = SuspendHandler()
        suspender.manage(self._runner)
        session = self._session = Session(
            settings, rules, self._runner, console, interpreter=program, suspender=suspender
        )
        self._router = _interactive_router(session, suspender, settings, is_terminal=mode == "pty")
        self._router.handle("command/status", self._show_status, lane="command", replace=True)
        if settings.prompt and mode == "pty":
            self._router.observe("input/unknown", self._explain_input)
            self._router.command("fg", self._bring_forward, help="Give the terminal to the command until Ctrl+Z.")
        # Emitted by the `reload` command and, without a terminal, by SIGHUP.
        self._router.handle("lifecycle/reload", session.reload)
        self._files = self._handle_files()
        self._add_webhook()
        self._add_signals()
        if live is not None:
            self._router.add_source(live)
        self._signals = _terminal_signals(self._launcher, foreground, mode)

    def run(self, *beside: AnyMain) -> int:
        """Run the watch alongside the components ``beside``, and return the exit status."""
        from lifecycle.cli.run import OptionalControlSocket, program_name
        from lifecycle.runtime import run

        try:
            control = OptionalControlSocket(program_name("watch", Path.cwd()), self._console)
            run(control, *beside, self._router, self._main, exit_timeout=max(25.0, self._settings.stop_timeout + 5.0))
        except SourceFailed as error:
            self._console.error(str(error))
            return FAILED
        return self._runner.exit_status

    async def _main(self) -> None:
        """Run the command. The directories are watched before it starts, so that no change is missed."""
        files = watching(self._router, self._files, self._session.learn(), self._runner.spawned)
        with _handling(self._signals):
            async with files, self._session.check_in_advance():
                self._console.info(f"watching {self._watched}")
                if option := own_reload_option(self._settings.command):
                    self._console.warning(f"the command also restarts itself ({option}), even after a syntax error")
                await self._runner.run()

    def _handle_files(self) -> list[ChangeSource]:
        settings = self._settings
        return handle_changes(
            self._router,
            self._session.files,
            settings.paths,
            self._session.react,
            prunes=self._session.prunes,
            wait=settings.wait,
            flat=settings.watch_non_recursive,
            poll=settings.poll,
        )

    def _add_webhook(self) -> None:
        if self._settings.webhook is None:
            return
        from lifecycle.cli.watch.endpoints import AnnouncedWebhook

        webhook = AnnouncedWebhook(self._settings.webhook, self._settings.secret_env, announce=self._console.info)
        self._router.handle("webhook/**", self._session.webhook)
        self._router.add_source(webhook)

    def _add_signals(self) -> None:
        maps = dict(self._settings.map_signal)
        if not maps:
            return
        from lifecycle.sources import SignalSource

        for received in maps:
            self._router.handle(SignalEvent(received).topic, lambda event: self._runner.forward(maps[event.signum]))
        self._router.add_source(SignalSource(*maps))

    def _live_reload(self) -> LiveReload | None:
        if self._settings.live is None:
            return None
        from lifecycle.cli.watch.endpoints import LiveReload

        return LiveReload(self._settings.live, self._console.info)

    @property
    def _watched(self) -> str:
        return ", ".join(map(str, (*self._settings.paths, *self._settings.watch_non_recursive)))

    def _show_status(self, _: object) -> None:
        then = "; changes are held until release" if self._session.held else ""
        console = replace(self._console, quiet=False)
        reply(f"{self._launcher.name}: {self._runner.describe()}\nwatching {self._watched}{then}", console.info)

    def _explain_input(self, _: object) -> None:
        """Explain why the command did not receive a line that was typed at the prompt."""
        self._console.info("the command gets no input at the prompt; fg gives it the terminal until Ctrl+Z")

    async def _bring_forward(self, _: object) -> None:
        """Give the terminal to the command until it exits or the user presses Ctrl+Z."""
        from lifecycle.cli.watch.terminal import connect
        from lifecycle.sources._terminal_output import lend_terminal

        if current_answer.get() is not None:
            raise refused("fg uses the terminal of lifecycle watch; type it at its prompt")
        terminal = self._launcher.terminal
        if terminal is None or self._runner.suspended:
            raise refused("the command is suspended; resume it first" if terminal else "the command is not running")

        greeting = io.StringIO()
        replace(self._console, stream=greeting, quiet=False).info(
            "the command has the terminal; Ctrl+Z returns to the prompt"
        )
        try:
            await lend_terminal(partial(connect, terminal, greeting.getvalue()))
        except LookupError:
            raise refused("fg needs a prompt, but TERM is dumb; omit --prompt instead") from None


def _require_paths(settings: Settings, *, typed: bool) -> None:
    if settings.workdir is not None and not S_ISDIR(file_mode(settings.workdir)):
        raise UsageError(f"--workdir {settings.workdir}: no such directory; create it, or use another")
    for file in (*settings.filter_file, *settings.ignore_file):
        if not S_ISREG(file_mode(file)):
            raise UsageError(f"{str(file)!r}: no such file; correct --filter-file or --ignore-file")
    for path in (*settings.paths, *settings.watch_non_recursive):
        if file_mode(path):
            continue
        missing = f"{str(path)!r}: no such file or directory to watch"
        if not typed:
            raise ConfigError(f"{missing}; correct paths in [tool.lifecycle.watch]")
        raise UsageError(missing + ("; write the command after --" if settings.paths[:1] == (path,) else ""))


def _interactive_router(
    session: Session, suspender: SuspendHandler, settings: Settings, *, is_terminal: bool
) -> Router:
    """Return a router with the prompt commands, which `lifecycle ctl` can also send.

    Without a terminal, the prompt reads from a pipe, and Ctrl+C stops the program immediately.
    """
    from lifecycle.interactive import new_interactive_router

    at_prompt = settings.prompt and is_terminal
    router = new_interactive_router(suspend=suspender, input=settings.prompt, signals=at_prompt, prompt="lifecycle> ")
    for command in list(router.commands):
        router.commands.remove(command.name)
        router.commands.add(replace(command, help=_HELP.get(command.name, command.help)))
    router.command("restart", session.restart, help="Restart the command.")
    router.command("hold", session.hold, help="Hold changes until release. The command keeps running.")
    router.command("release", session.release, help="React to held changes.")
    return router


def _foreground() -> Foreground:
    """Return our terminal, which the command uses."""
    from lifecycle.cli.watch.terminal import Foreground

    return Foreground()


def _terminal_signals(launcher: Launcher, foreground: Foreground | None, mode: StdioMode) -> _SignalHandlers:
    """Return the handlers for the signals of a terminal.

    In the foreground, Ctrl+Z, ``fg`` and ``bg`` work as if the shell had started the command itself. A terminal of the
    command's own has the same size as ours.
    """
    if foreground is not None:
        return {signal.SIGCHLD: foreground.child_changed, signal.SIGCONT: foreground.resume}
    return {signal.SIGWINCH: launcher.resize} if mode == "pty" else {}


@contextmanager
def _handling(handlers: _SignalHandlers) -> Generator[None]:
    """Call a function in the event loop for each of these signals, without events, which `ctl tail` would show."""
    from lifecycle.runtime.signals import signal_registry

    loop = asyncio.get_running_loop()

    def receive(signum: int) -> None:
        loop.call_soon_threadsafe(handlers[signal.Signals(signum)])

    release = signal_registry().take(handlers, receive)
    try:
        yield
    finally:
        release()
