"""What a host means: an address, a name, or the path of a Unix socket."""

from __future__ import annotations

from urllib.parse import quote

from lifecycle import _net

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
    return unix_path(host) is not None or _net.is_loopback(host)


def url_of(scheme: str, host: str, port: int) -> str:
    """Where it is, without a slash at the end."""
    if (path := unix_path(host)) is not None:
        return f"{scheme}+unix://{quote(path, safe='')}"
    return _net.url_of(scheme, host, port)
