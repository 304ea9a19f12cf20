"""How one command's line is read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CommandParser", "typed"]


class CommandParser(argparse.ArgumentParser):
    """Takes names on both sides of an option, and answers itself for options that it does not know."""

    #: Whether it does the former.
    intermixes: bool = True
    #: The long options.
    _known: tuple[str, ...] = ()

    def add_argument(self, *names: str, **how: Any) -> argparse.Action:  # pyright: ignore[reportIncompatibleMethodOverride]  # argparse has no better names
        """As in argparse."""
        self._known += tuple(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **how)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # its overloads
        """As in argparse, but for what is unknown."""
        if not self.intermixes:
            return super().parse_known_args(args, namespace)
        self.intermixes = False  # what follows comes back here
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self.error(f"unknown: {' '.join(unknown)}{self._meant(unknown[0])}")
        return parsed, unknown

    def _meant(self, unknown: str) -> str:
        import difflib

        close = difflib.get_close_matches(unknown.partition("=")[0], self._known, 1)
        return f"; did you mean {close[0]}?" if close else ""


def typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader whose `ValueError` argparse shows as it is."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return typed
