"""Access checks of the dashboard: hosts, origins and tokens, each right, wrong, missing, repeated and misplaced."""

from __future__ import annotations

import socket

import pytest
from multidict import CIMultiDict

from lifecycle.errors import Refused
from lifecycle.observe.http.guard import HEADERS, Guard, generate_token

TOKEN = "a-token-of-a-user"
RIGHT = ("Authorization", f"Bearer {TOKEN}")
PAGES = ("/", "/page/app.js")


def asked(
    *headers: tuple[str, str], method: str = "GET", path: str = "/api/state", host: str = "127.0.0.1", to: str = ""
) -> int:
    """Return the status with which the guard rejects a request, or 200 if the request passes."""
    given = CIMultiDict([("Host", to or f"{host}:8080"), *headers])
    try:
        Guard(host, TOKEN, free=PAGES).check(method, path, given)
    except Refused as refusal:
        return refusal.status if TOKEN not in refusal.reason else 0
    return 200


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.9.9.9:1",
        "localhost",
        "LOCALHOST:8080",
        "[::1]:8080",
        "[::1]",
        "localhost:22",
    ],
)
def test_the_names_of_this_machine_are_accepted_at_any_port(name: str) -> None:
    assert asked(RIGHT, to=name) == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "evil.example@127.0.0.1",
        "localhost@evil.example",
        "127.0.0.1:80@evil.example",
        "localhost:80@evil.example",
        "localhost:port",
        "localhost.",
        "[::1]evil.example",
        "[::1]:80:80",
        "[::1%evil.example]:80",
        "::1",
        "127.0.0.1:8080, evil.example",
        "http://127.0.0.1:8080",
        "127.0.0.1:8080/",
        "127.0.0.1\n",
        "192.168.1.7:8080",
        "0.0.0.0:8080",
        "[::1",
        "[fe80::1]:80",
        "2130706433",
        "0x7f.1",
        " ",
        ":8080",
        "localhost\u0000",
        "localhos\u0442",
    ],
)
def test_any_other_name_is_refused_for_it_may_have_been_rebound(name: str) -> None:
    assert asked(to=name) == 403
    assert asked(RIGHT, to=name, method="POST", path="/api/command") == 403
    assert asked(to=name, path="/") == 403


def test_exactly_one_host_has_to_be_named() -> None:
    assert asked(("Host", "127.0.0.1:8080")) == 403
    with pytest.raises(Refused):
        Guard("127.0.0.1", TOKEN).check("GET", "/api/state", CIMultiDict())


@pytest.mark.parametrize("target", ["http://evil.example/api/state", "http://127.0.0.1:8080/", "evil.example:80", "*"])
def test_absolute_targets_are_refused_for_any_host(target: str) -> None:
    with pytest.raises(Refused, match="not a proxy"):
        Guard("127.0.0.1", TOKEN).check("GET", "/api/state", CIMultiDict(Host="127.0.0.1:8080"), target=target)


def test_on_a_network_numbers_and_own_names_are_right_and_names_of_others_are_not() -> None:
    for name in ("192.168.1.7:8080", "[fe80::1]:80", f"{socket.gethostname()}:8080", "localhost"):
        assert asked(RIGHT, host="0.0.0.0", to=name) == 200
    assert asked(RIGHT, host="0.0.0.0", to="evil.example") == 403
    assert asked(RIGHT, host="box.example", to="box.example:1") == 200


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8080", "https://127.0.0.1:8080", "HTTP://127.0.0.1:8080"])
def test_the_dashboards_own_page_is_served(origin: str) -> None:
    assert asked(RIGHT, ("Origin", origin), ("Sec-Fetch-Site", "same-origin")) == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:3000",
        "http://localhost:8080",
        "http://127.0.0.1:8080.evil.example",
        "ftp://127.0.0.1:8080",
        "http://127.0.0.1:8080/",
    ],
)
def test_other_pages_are_refused_with_and_without_token(origin: str) -> None:
    assert asked(("Origin", origin)) == 403
    assert asked(("Origin", origin), RIGHT, method="POST", path="/api/command") == 403


def test_a_second_origin_is_looked_at_too() -> None:
    assert asked(("Origin", "http://127.0.0.1:8080"), ("Origin", "http://evil.example")) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "anything"])
def test_requests_that_a_browser_marks_as_cross_site_are_refused(site: str) -> None:
    assert asked(("Sec-Fetch-Site", site)) == 403
    assert asked(("Sec-Fetch-Site", site), path="/page/app.js") == 403
    assert asked(("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "navigate"), path="/api/state") == 403


def test_any_page_may_link_to_the_dashboard() -> None:
    link = ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")
    assert asked(*link, path="/") == 200
    assert asked(*link, path="/", method="POST") == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/api/state", "/api/live", "/api/nodes", "/api/command", "/api/nowhere", "/metrics"])
def test_every_path_that_is_not_a_file_of_the_page_needs_the_token(method: str, path: str) -> None:
    assert asked(method=method, path=path) == 401
    assert asked(RIGHT, method=method, path=path) == 200


def test_on_a_network_only_the_files_of_the_page_are_open() -> None:
    for path in PAGES:
        assert asked(host="0.0.0.0", path=path, to="192.168.1.7") == 200
    for path in ("/api/state", "/api/live", "/api/nowhere", "//api/state", "/page/other"):
        assert asked(host="0.0.0.0", path=path, to="192.168.1.7") == 401
        assert asked(RIGHT, host="0.0.0.0", path=path, to="192.168.1.7") == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Bearer{TOKEN}",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer x {TOKEN}",
        f"Bearer {TOKEN} x",
        "Bearer \udcff\u00e9",
        "Bearer " + "x" * 100_000,
    ],
)
def test_a_token_that_is_not_right_is_refused(header: str) -> None:
    assert asked(("Authorization", header), method="POST", path="/api/command") == 401
    assert asked(("Authorization", header)) == 401


def test_a_token_counts_once_and_the_scheme_in_any_case() -> None:
    assert asked(RIGHT, RIGHT, method="POST") == 401
    assert asked(("Authorization", f"bEARER  {TOKEN} "), method="POST") == 200


@pytest.mark.parametrize(
    "header", [("Cookie", f"token={TOKEN}"), ("X-Token", TOKEN), ("Proxy-Authorization", RIGHT[1])]
)
def test_a_token_in_the_wrong_place_is_ignored(header: tuple[str, str]) -> None:
    assert asked(header, method="POST", path="/api/command") == 401
    assert asked(method="POST", path=f"/api/command?token={TOKEN}") == 401


@pytest.mark.parametrize("token", ["", " ", "two words", "tab\t", "line\n", "caf\u00e9", "\U0001f511"])
def test_a_token_that_no_header_carries_is_refused_at_once(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Guard("127.0.0.1", token)


def test_tokens_that_are_made_differ_and_can_be_carried() -> None:
    tokens = {generate_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 32 and Guard("::1", token) for token in tokens)


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(each.strip().split(" ", 1) for each in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
