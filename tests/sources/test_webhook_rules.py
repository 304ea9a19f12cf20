"""Webhooks without a socket: valid settings, paths that are topics, and rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.events import WebhookEvent
from lifecycle.sources import GitHub, Limits, WebhookSource
from lifecycle.sources._webhook_rules import RateLimiter, decoded

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_verifier(host: str) -> None:
    WebhookSource(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org"])
def test_a_host_that_others_can_reach_needs_a_verifier(host: str) -> None:
    with pytest.raises(ValueError, match="verify=GitHub"):
        WebhookSource(host)
    WebhookSource(host, verify=GitHub("secret"))


def test_a_verifier_is_an_object_or_a_function() -> None:
    def check(headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        return ""

    WebhookSource("0.0.0.0", verify=check)
    with pytest.raises(TypeError, match="is not a verifier"):
        WebhookSource("0.0.0.0", verify="secret")  # type: ignore[arg-type]

    async def late(headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        return ""

    with pytest.raises(TypeError, match="or a plain function"):
        WebhookSource("0.0.0.0", verify=late)  # type: ignore[arg-type]


def test_the_url_before_the_start_is_the_given_address() -> None:
    assert WebhookSource(port=9000).url == "http://127.0.0.1:9000"
    assert WebhookSource("::1", 9000).url == "http://[::1]:9000"


@pytest.mark.parametrize("path", ["", "a//b", "a/", "../a", "a/./b", "deploy/*", "a?b", "[a]", "a\nb"])
def test_paths_that_no_request_can_have_raise(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be served"):
        WebhookSource(paths=[path])


def test_a_string_as_paths_or_methods_raises() -> None:
    with pytest.raises(TypeError, match="pass a tuple"):
        WebhookSource(paths="/deploy")
    with pytest.raises(TypeError, match="pass a tuple"):
        WebhookSource(methods="POST")
    with pytest.raises(TypeError, match="not a path"):
        WebhookSource(paths=[1])  # type: ignore[list-item]


@pytest.mark.parametrize("methods", [(), ("",), ("PO ST",)])
def test_invalid_methods_raise(methods: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not valid HTTP methods"):
        WebhookSource(methods=methods)


@pytest.mark.parametrize("limits", [{"body": 0}, {"pending": 0}, {"rate": (0, 1)}])
def test_limits_that_reject_every_request_raise(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="would reject every request"):
        Limits(**limits)  # type: ignore[arg-type]


def test_a_path_as_inbox_raises() -> None:
    with pytest.raises(TypeError, match=r"pass Inbox\('app.db'\)"):
        WebhookSource(inbox="app.db")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/deploy", "/deploy"),
        ("/a/b", "/a/b"),
        ("/caf%C3%A9", "/café"),
        ("/a%20b", "/a b"),
        ("http://host/deploy", "/deploy"),
        ("http://host", "/"),
        ("", None),
        ("*", None),
        ("//", None),
        ("/a/", None),
        ("//a", None),
        ("/a//b", None),
        ("/..", None),
        ("/%2e%2e/a", None),
        ("/./a", None),
        ("/a%2Fb", None),
        ("/%2A", None),
        ("/*", None),
        ("/a%5Cb", None),
        ("/%ff", None),
        ("/a%00b", None),
        ("/a%0Ab", None),
        ("/\udcff", None),
        ("http://[", None),
        ("/a" * 63, "/a" * 63),
        ("/a" * 64, None),
        ("/" + "a" * 1016, "/" + "a" * 1016),
        ("/" + "a" * 1017, None),
        ("http://host" + "/a" * 64, None),
    ],
)
def test_which_targets_are_topics(target: str, path: str | None) -> None:
    assert decoded(target) == path


@given(st.text(st.characters(codec=None)))
def test_any_target_becomes_a_clean_topic_or_none(target: str) -> None:
    path = decoded(target)
    if path is not None:
        segments = WebhookEvent("POST", path, {}, {}, b"", "1").topic.split("/")
        assert segments[0] == "webhook"
        assert len(segments) <= 64
        assert not {"", ".", ".."} & set(segments)
        assert not set("*?[]\\") & set(path)
        assert path.isprintable()


def test_an_allowance_can_be_used_as_a_burst_and_refills_evenly() -> None:
    rates = RateLimiter(3, 6.0)
    assert [rates.wait("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert rates.wait("a", 0.0) == pytest.approx(2)
    assert rates.wait("b", 0.0) == 0
    assert rates.wait("a", 2.0) == 0
    assert rates.wait("a", 2.0) == pytest.approx(2)


@given(
    count=st.integers(1, 20),
    seconds=st.floats(0.1, 100),
    pauses=st.lists(st.floats(0, 10), max_size=100),
)
def test_a_client_cannot_exceed_the_rate(count: int, seconds: float, pauses: list[float]) -> None:
    """In any period of ``seconds``, a client can send at most its allowance plus the refill for that period."""
    rates, now, passed = RateLimiter(count, seconds), 0.0, []
    for pause in pauses:
        now += pause
        if not rates.wait("a", now):
            passed.append(now)
    for start, began in enumerate(passed):
        for number, at in enumerate(passed[start:], 1):
            assert number <= count + (at - began) * count / seconds + 1e-3


def test_the_clients_that_were_quiet_for_longest_are_forgotten() -> None:
    rates = RateLimiter(1, 10.0, clients=100)
    for number in range(1000):
        rates.wait(str(number), 0.0)
    assert len(rates) == 100
    assert rates.wait("999", 0.0) > 0
