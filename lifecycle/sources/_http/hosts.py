"""What a host means: an address, a name, or the path of a Unix socket."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote

__all__ = ["is_local", "unix_path", "url_of"]

_UNIX = "unix:"


def unix_path(host: str) -> str | None:
    """The path in ``unix:/run/app.sock``; None for any other host.

    Raises:
        ValueError: if there is none that means the same wherever we are.
    """
    if not host.startswith(_UNIX):
        return None
    path = host.removeprefix(_UNIX)
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"host={host!r} has no path from the root; give one such as unix:/run/app.sock")
    return path


def is_local(host: str) -> bool:
    """Whether no other machine can reach it."""
    if host == "localhost" or unix_path(host) is not None:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def url_of(scheme: str, host: str, port: int) -> str:
    """Where it is, without a slash at the end."""
    if (path := unix_path(host)) is not None:
        return f"{scheme}+unix://{quote(path, safe='')}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
