"""Reload a configuration when its file changes: ``python examples/config_reload.py service.toml``.

The file contains a ``greeting`` and, optionally, an ``interval`` in seconds. It is read and checked as a whole. If the
file is invalid, the old configuration stays in use, and the reason is logged. SIGHUP also reloads the file.
"""

import logging
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from lifecycle import FileEvent, FileWatchSource, ReloadEvent, ReloadHandler, Router, run, sleep


@dataclass(frozen=True)
class Config:
    """A valid configuration."""

    greeting: str
    interval: float


def parse(text: str) -> Config:
    """Parse the configuration, and check every value before any of them is used."""
    values = tomllib.loads(text)
    greeting, interval = values.get("greeting"), values.get("interval", 1.0)
    if not isinstance(greeting, str):
        raise TypeError(f"greeting must be a string, got {greeting!r}")
    if not isinstance(interval, int | float) or interval <= 0:
        raise ValueError(f"interval must be a positive number of seconds, got {interval!r}")
    return Config(greeting, interval)


class Service:
    """Prints the greeting of the current configuration."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.config = self.read()

    def read(self) -> Config:
        """Prepare a new configuration without applying it."""
        return parse(self.file.read_text(encoding="utf-8"))

    def use(self, config: Config) -> None:
        """Replace the configuration in one step."""
        self.config = config
        print("reloaded:", config, flush=True)

    async def run(self) -> None:
        """Run until shutdown."""
        while True:
            print(self.config.greeting, flush=True)
            await sleep(self.config.interval)


def main(file: str) -> None:
    """Serve until Ctrl+C."""
    logging.basicConfig(level="INFO", format="%(message)s")
    service, router = Service(Path(file)), Router()
    reload = ReloadHandler(service.read, service.use)
    router.add_source(FileWatchSource(file))
    router.handle(FileEvent, reload, debounce=0.1)
    router.handle(ReloadEvent, reload)  # SIGHUP, if the program has no terminal
    run(service, router)


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["service.toml"])
