"""Who asks a program, which program that is, and what there is to say where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from lifecycle.cli.ctl.exchanges import Exchange, decoded
from lifecycle.cli.ctl.streams import Stream
from lifecycle.cli.failures import CliError, UsageError
from lifecycle.cli.listing import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.observe.sockets import Program

__all__ = ["NOWHERE", "Client", "NoProgramError", "choose"]

#: There is no such program.
NOWHERE: Final = 4
#: Seconds for a question that a program answers without doing anything.
_PATIENCE: Final = 10.0


class NoProgramError(CliError):
    """No program of that name runs here, or none at all."""

    status = NOWHERE


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one program."""

    program: Program

    @property
    def name(self) -> str:
        """Of the program, as it may be printed."""
        return harmless(self.program.name)

    def get(self, target: str, **query: object) -> Any:
        """What it answers, of JSON.

        Raises:
            CliError: when it refuses, or does not answer.
        """
        return decoded(self._ask(target, query))

    def text(self, target: str, **query: object) -> str:
        """What it answers, as text."""
        return self._ask(target, query).decode(errors="replace")

    def post(self, target: str, body: object) -> Any:
        """Tell it something, and wait until it has answered, however long that takes."""
        with self.tell(target, body) as exchange:
            return decoded(exchange.body())

    def tell(self, target: str, body: object) -> Exchange:
        """Tell it something; the answer is the caller's to wait for."""
        return Exchange(self.program, target, body)

    def stream(self, target: str, shown: TextIO | None = None, **query: object) -> Stream:
        """What it tells as it happens, for as long as somebody reads ``shown``."""
        exchange = Exchange(self.program, _with_query(target, query), timeout=_PATIENCE)
        try:
            return Stream(exchange, shown, patience=_PATIENCE)
        except BaseException:
            exchange.__exit__(None, None, None)
            raise

    def _ask(self, target: str, query: dict[str, object]) -> bytes:
        with Exchange(self.program, _with_query(target, query), timeout=_PATIENCE) as exchange:
            return exchange.body(until=monotonic() + _PATIENCE)


def choose(name: str | None) -> Client:
    """The program called ``name``, or the only one.

    Raises:
        NoProgramError: where there is none.
        UsageError: where there are several, and none was named.
    """
    from lifecycle.observe.sockets import find

    programs = find(name)
    if len(programs) == 1:
        return Client(programs[0])
    if programs:
        several = "run here" if name is None else f"are called {name!r}"
        raise UsageError(f"several programs {several}; name one with -p:\n{_listed(programs)}")
    if name is None:
        raise NoProgramError("no program runs here that could be asked; `lifecycle run`, or a ControlSocket, makes one")
    others = find()
    known = f"; there {'is' if len(others) == 1 else 'are'}\n{_listed(others)}" if others else ", nor any other"
    raise NoProgramError(f"no program called {name!r} runs here{known}")


def _listed(programs: Sequence[Program]) -> str:
    return "\n".join(f"  {harmless(each.name)}" for each in programs)


def _with_query(target: str, query: dict[str, object]) -> str:
    if not query:
        return target
    from urllib.parse import urlencode

    return f"{target}?{urlencode(query)}"
