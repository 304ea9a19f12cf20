"""Every option of `lifecycle watch` in one table, which the command line and ``pyproject.toml`` both read.

Add an option here and in `settings`, nowhere else.
"""

from __future__ import annotations

from lifecycle.cli import values
from lifecycle.cli.options import LOG_FORMAT, Flag, Option

__all__ = ["OPTIONS"]

OPTIONS: tuple[Option | Flag, ...] = (
    Option("ext", "py,toml", "only files with these endings", values.extensions, many=True),
    Option("include", "GLOB", "these paths count too, besides --ext", values.globs, many=True),
    Option("ignore", "GLOB", "these paths never count", values.globs, many=True),
    Flag("gitignore", "what git ignores counts too", default=True),
    Option(
        "on", "GLOB=ACTION", "restart, reload or ignore for these paths; the first match wins", values.rules, many=True
    ),
    Option("step", "S", "gather the system's notifications for S seconds (0.05)", values.interval, number=True),
    Option("wait", "S", "act once it was quiet for S seconds (0.1)", values.seconds, number=True),
    Option("busy", "POLICY", "while the command runs: restart it, queue the change, or drop it", values.busy),
    Option(
        "restart",
        "POLICY",
        "start it again when it ends: never (that is the default), on-failure, always",
        values.policy,
    ),
    Option("ready", "WHEN", "when it counts as started, such as port:8000", values.ready),
    Option("start-timeout", "S", "how long it has for that (30)", values.interval, number=True),
    Flag("postpone", "wait for the first change before the first start"),
    Option(
        "poll",
        "S",
        "look every S seconds, where the system does not tell (NFS, Docker, WSL)",
        values.interval,
        number=True,
    ),
    Flag("clear", "clear the screen before each start"),
    Option("env-file", "F", "KEY=VALUE lines for the command's environment", values.path),
    Flag("shell", "the command is one line for $SHELL -c"),
    Option("signal", "SIG", "send this signal at a change, instead of restarting", values.signal),
    Option("stop-signal", "SIG", "ask the command to stop with this signal (TERM)", values.signal),
    Option("stop-timeout", "S", "kill it S seconds after the stop signal (10)", values.seconds, number=True),
    Flag("keep-old", "stop the old one only when the new one is ready; if it will not be, the old one stays"),
    Option(
        "socket", "HOST:PORT", "listen there once, and hand the socket to each run (as systemd does)", values.address
    ),
    Option(
        "live", "PORT", "reload pages in browsers when it is ready; the tag for them is shown", values.port, number=True
    ),
    Option("webhook", "HOST:PORT", "restart on a POST too", values.address),
    Option("secret-env", "NAME", "the variable with the secret that signs the POSTs (as GitHub does)", values.variable),
    Flag("prompt", "leave the terminal to the command (for pdb)", default=True),
    Flag("check", "restart even if a changed Python file has a syntax error", default=True),
    LOG_FORMAT,
)
