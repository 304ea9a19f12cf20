"""What is said of functions and of errors in messages."""

from __future__ import annotations

import pytest

from lifecycle._naming import error_text, reason_of, words_of
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
        (Mute(), "Mute: (its message cannot be had: RuntimeError)", "Mute: (its message cannot be had: RuntimeError)"),
    ],
)
def test_an_error_says_what_it_is_and_why(error: Exception, text: str, reason: str) -> None:
    assert (error_text(error), reason_of(error)) == (text, reason)


def test_an_error_whose_own_text_fails_has_words_all_the_same() -> None:
    assert words_of(Mute()) == "(its message cannot be had: RuntimeError)"
