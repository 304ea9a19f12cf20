"""Addresses at which a server listens: which port there can be, who reaches a host, and the URL of both."""

from __future__ import annotations

import ipaddress

__all__ = ["check_port", "is_loopback", "share_of_descriptors", "url_of"]

_LAST_PORT = 65_535


def check_port(port: int) -> None:
    """Refuse a port that there cannot be.

    Raises:
        ValueError: saying which there are.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port={port!r} is none; give 1 to {_LAST_PORT}, or 0 for any that is free")


def is_loopback(host: str) -> bool:
    """Whether no other machine can reach it: ``localhost``, or a number; any other name may lead anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # One of IPv4 in one of IPv6; Pythons differ in what they say of it.
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def url_of(scheme: str, host: str, port: int) -> str:
    """Where it is, without a slash at the end."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def share_of_descriptors(part: int, *, least: int, most: int) -> int:
    """How many connections are one ``part``-th of the descriptors that this process may open, within bounds."""
    try:
        import resource  # not everywhere
    except ImportError:
        return least
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(least, soft // part))
