"""Records the behaviour of Erlang/OTP: ``python -m tests.conformance.recording FILE.json``.

For each case in the file, it runs the flags, children and actions on OTP's supervisor, and replaces the recorded
results. It needs ``escript`` from Debian's ``erlang-base``. With ``--check`` it writes nothing and prints the
differences from the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["erlang", "main", "recorded"]

Json = Any

_SCRIPT = Path(__file__).with_name("recording.escript")


def recorded(cases: list[Json]) -> list[Json]:
    """Return one result record for each of ``cases``: start, events, results, alive, sup_exit and ms."""
    with tempfile.NamedTemporaryFile("w", suffix=".terms") as terms:
        for case in cases:
            terms.write("{" + ", ".join(erlang(case[part]) for part in ("flags", "children", "actions")) + "}.\n")
        terms.flush()
        ran = subprocess.run(["escript", str(_SCRIPT), terms.name], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"case {len(ran.stdout.splitlines()) + 1} failed: {ran.stderr}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def erlang(value: Json) -> str:
    """Return ``value`` as an Erlang term. Text becomes an atom, and a list that begins with an atom becomes a tuple."""
    match value:
        case None:
            return "undefined"
        case bool():
            return str(value).lower()
        case str():
            return "'" + value + "'"
        case dict():
            return "#{" + ", ".join(f"{erlang(key)} => {erlang(each)}" for key, each in value.items()) + "}"
        case list():
            terms = ", ".join(map(erlang, value))
            return f"{{{terms}}}" if value and isinstance(value[0], str) else f"[{terms}]"
        case _:
            return str(value)


def main(path: str, *, check: bool = False) -> int:
    """Record the cases in a file. With ``check``, return the number of cases with different results."""
    file = json.loads(Path(path).read_text())
    different = 0
    for case, record in zip(file["cases"], recorded(file["cases"]), strict=True):
        for what, found in record.items():
            if what != "ms" and case.get(what) != found:
                different += 1
                print(f"{case['id']} ({case['title']}): {what} was {case.get(what)}, is {found}")
        case.update(record)
    if not check:
        Path(path).write_text(_text(file))
    return different


def _text(file: Json) -> str:
    """Return the document with one case per line."""
    cases = ",\n".join(json.dumps(case) for case in file["cases"])
    head = json.dumps({**file, "cases": []}, indent=1)
    return head.replace('"cases": []', f'"cases": [\n{cases}\n]') + "\n"


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if each != "--check"]
    if len(arguments) != 1:
        sys.exit("usage: python -m tests.conformance.recording [--check] FILE.json")
    sys.exit(bool(main(arguments[0], check="--check" in sys.argv)) and "--check" in sys.argv)
