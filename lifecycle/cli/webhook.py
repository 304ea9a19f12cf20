"""`lifecycle webhook send`: sign a request, send it once, and print the response.

Redirects are not followed, because the signed request is only meant for the given address.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from lifecycle._util import reason_of
from lifecycle.cli.files import secret_in
from lifecycle.cli.output import DONE, FAILED, CliError, UsageError, print_result
from lifecycle.sources.signatures import GitHub, GitLab, Hmac, Slack, StandardWebhooks, Stripe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SCHEMES", "send"]

_Scheme: TypeAlias = GitHub | GitLab | Hmac | Slack | StandardWebhooks | Stripe

SCHEMES: Mapping[str, Callable[..., _Scheme]] = {
    "github": GitHub,
    "standard": StandardWebhooks,
    "stripe": Stripe,
    "slack": Slack,
    "gitlab": GitLab,
    "hmac": Hmac,
}

#: The timeout, in seconds, for connecting and for receiving each chunk of the response.
_TIMEOUT = 30.0
#: The maximum number of response bytes to print.
_MAX_SHOWN = 1_048_576
#: Characters that are not quoted in a path or query. They include the percent sign, so that nothing is quoted twice.
_SAFE = "%/:?#[]@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    reason: str
    body: str

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".rstrip() + "\n" + (f"{self.body.rstrip()}\n" if self.body.strip() else "")


def send(url: str, *, scheme: str, secret_env: str, data: str, options: Mapping[str, str]) -> int:
    """Send ``data`` in a POST request, signed with the secret in the environment variable ``secret_env``.

    Return 0 if the response has a 2xx status, and 1 otherwise.

    Raises:
        UsageError: if the address, the data or an option is invalid.
        ConfigError: if the variable is not set.
        CliError: if there is no response.
    """
    target = _target(url)
    secret = secret_in(secret_env)
    body = _data(data)
    try:
        signer = _signer(scheme, secret, options)
        headers = signer.sign(body, now=time.time(), delivery_id=str(uuid.uuid4()))
    except (ValueError, ImportError) as error:
        raise UsageError(f"--scheme {scheme} with the secret in {secret_env}: {error}") from None
    response = _post(target, body, headers)
    print_result(sys.stdout, str(response))
    return DONE if 200 <= response.status < 300 else FAILED  # noqa: PLR2004  # a successful HTTP status


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        _ = target.port
    except ValueError as error:
        raise UsageError(f"{url!r} is not a valid URL: {error}") from None
    if target.scheme not in ("http", "https") or not target.hostname:
        raise UsageError(f"{url!r} is not an HTTP URL; use one such as http://127.0.0.1:9000/deploy")
    if "@" in target.netloc:
        raise UsageError("the URL contains a user name, which would not be sent; remove it")
    return target


def _signer(name: str, secret: str, options: Mapping[str, str]) -> _Scheme:
    if options and name != "hmac":
        raise UsageError(f"--{next(iter(options))} applies only to --scheme hmac; the headers of {name} are fixed")
    if name == "hmac" and "header" not in options:
        raise UsageError("--scheme hmac requires --header NAME, the header for the signature")
    return SCHEMES[name](secret, **options)


def _data(text: str) -> bytes:
    """Return the request body. If ``text`` starts with ``@``, the rest names a file, or is ``-`` for standard input."""
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        if text == "@-":
            return sys.stdin.buffer.read() if sys.stdin else b""
        return Path(text[1:]).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"--data {text}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _post(target: SplitResult, body: bytes, headers: Mapping[str, str]) -> _Response:
    path = quote(target.path or "/", _SAFE) + (f"?{quote(target.query, _SAFE)}" if target.query else "")
    try:
        with closing(_connection(target)) as connection:
            connection.request("POST", path, body, _http_headers(headers))
            response = connection.getresponse()
            text = response.read(_MAX_SHOWN).decode("utf-8", "replace")
    except (OSError, HTTPException, UnicodeError) as error:
        raise CliError(f"no response from {target.geturl()}: {_reason(error)}") from None
    return _Response(response.status, response.reason, text)


def _connection(target: SplitResult) -> HTTPConnection:
    assert target.hostname is not None  # `_target` has checked it
    if target.scheme == "http":
        return HTTPConnection(target.hostname, target.port, timeout=_TIMEOUT)
    return HTTPSConnection(target.hostname, target.port, timeout=_TIMEOUT, context=ssl.create_default_context())


def _http_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    signed = {name: os.fsencode(value) for name, value in headers.items()}
    return {"Content-Type": "application/json", "User-Agent": "lifecycle", **signed}


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no data for {_TIMEOUT:g} s"
    strerror = getattr(error, "strerror", None)
    return strerror or reason_of(error)
