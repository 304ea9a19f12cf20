"""The process in which a target is fuzzed: ``python -m tests.chaos._fuzzed TARGET DIRECTORY [libFuzzer options]``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The modules and packages whose branches guide the fuzzer.
_INSTRUMENTED = (
    "lifecycle.control.patterns",
    "lifecycle.control.commands",
    "lifecycle.sources.signatures",
    "lifecycle.workers.pool.protocol",
    "lifecycle.cli.files",
    "lifecycle.cli.paths",
    "lifecycle.bridges.cloudevents",
    "dotenv",
    "pathspec",
)

_ROOT = Path(__file__).parents[2]


def main() -> None:
    name, directory, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_INSTRUMENTED, exclude=list(_others())):
        from tests.chaos.fuzz_targets import TARGETS
    target = TARGETS[name]
    logging.disable()
    corpus = Path(directory, "corpus")
    corpus.mkdir()
    for number, data in enumerate(target.corpus):
        (corpus / str(number)).write_bytes(data)

    def check(data: bytes) -> None:
        try:
            target.check(data)
        except Exception:
            Path(directory, "crash-input").write_bytes(data)
            raise

    words = Path(directory, "words")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    atheris.Setup([sys.argv[0], *options, f"-dict={words}", str(corpus)], check)
    atheris.Fuzz()


def _others() -> Iterator[str]:
    """Return the other modules of the library, because atheris instruments whole top-level packages."""
    for path in (_ROOT / "lifecycle").rglob("*.py"):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not any(f"{name}.".startswith(f"{each}.") for each in _INSTRUMENTED):
            yield name


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02X}" for byte in word.encode())


if __name__ == "__main__":
    main()
