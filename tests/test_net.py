"""The addresses at which servers listen."""

from __future__ import annotations

import pytest

from lifecycle._net import check_port, is_loopback, url_of


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_addresses_that_only_this_host_reaches_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.0.1", "::ffff:192.168.0.1", "", "box.example", "localhost."]
)
def test_anything_else_may_be_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"port={port} is out of range; use 1 to 65535, or 0"):
        check_port(port)


@pytest.mark.parametrize("port", [0, 1, 65_535])
def test_any_other_port_is_accepted(port: int) -> None:
    check_port(port)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert [url_of("http", host, 80) for host in ("box", "::1")] == ["http://box:80", "http://[::1]:80"]
