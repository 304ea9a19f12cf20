"""How messages name functions and errors."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from lifecycle._async import is_async
from lifecycle._util import error_text, message_of, name_of, reason_of
from lifecycle.errors import RouteNotFound


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text", "reason"),
    [
        (ValueError("too long"), "ValueError: too long", "too long"),
        (ValueError(), "ValueError", "ValueError"),
        (KeyError("x"), "KeyError: 'x'", "KeyError: 'x'"),
        (RouteNotFound("no route 'x'"), "RouteNotFound: no route 'x'", "no route 'x'"),
        (
            Mute(),
            "Mute: (its message cannot be read: RuntimeError)",
            "Mute: (its message cannot be read: RuntimeError)",
        ),
    ],
)
def test_an_error_is_formatted_with_its_type_and_text(error: Exception, text: str, reason: str) -> None:
    assert (error_text(error), reason_of(error)) == (text, reason)


def test_an_error_whose_text_raises_is_still_formatted() -> None:
    assert message_of(Mute()) == "(its message cannot be read: RuntimeError)"


class Answering:
    """An async callable that returns itself for every attribute."""

    async def __call__(self) -> None: ...

    def __getattr__(self, _name: str) -> Any:
        return self


async def work() -> None: ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (work, "work"),
        (functools.partial(functools.partial(work)), "work"),
        (dict.update, "dict.update"),
        (Answering(), "Answering"),
    ],
)
def test_a_function_is_called_by_its_name_and_an_object_by_that_of_its_class(fn: Any, name: str) -> None:
    assert name_of(fn) == name


@pytest.mark.parametrize(
    ("fn", "answer"),
    [(work, True), (functools.partial(work), True), (Answering(), True), (Answering, False), (print, False)],
)
def test_async_callables_are_recognised_without_a_call(fn: Any, answer: bool) -> None:
    assert is_async(fn) is answer
