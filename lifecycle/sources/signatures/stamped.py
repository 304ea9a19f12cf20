"""Schemes that sign the time with the body, each in its own way: Stripe's and Slack's.

What they sign has no delivery id: that a request is repeated can be told by what is signed.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.checks import check_matches, check_time, credential, encoded, header, unchanged
from lifecycle.sources.signatures.settings import check_tolerance, keys_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Slack", "Stripe"]

_STRIPE = "Stripe-Signature"
_SLACK = "X-Slack-Signature"
_SLACK_TIME = "X-Slack-Request-Timestamp"


class Stripe:
    """Stripe's ``Stripe-Signature``: ``t=…,v1=…``, HMAC with SHA-256 over the time, a dot and the body.

    The secret is the whole ``whsec_…`` of the endpoint. Several are for rotation, here and in the header: one match
    will do. ``tolerance`` is how many seconds the time may be off, either way. There is no delivery id; the id of the
    event is in the body.

    Raises:
        ValueError: without a secret, with an empty one, or for a tolerance that is not above 0.
        TypeError: for a secret that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _STRIPE.lower()

    def __init__(self, *secrets: str | bytes, tolerance: float = 300.0) -> None:
        self._keys = keys_of(secrets)
        self._tolerance = check_tolerance(tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """``""`` for a request that Stripe signed a short time ago.

        Raises:
            VerificationError: for anything else.
        """
        stamp, given = _stripe_parts(credential(headers, _STRIPE))
        check_time(stamp, _STRIPE, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        check_matches([_stripe(key, stamp, content) for key in self._keys], given, _STRIPE)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """The same for each request that signs this time and body, however its header is written; of a verified one."""
        stamp, _ = _stripe_parts(header(headers, _STRIPE))
        return _stripe(self._keys[0], stamp, body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """The headers of a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_STRIPE.lower(): f"t={stamp},v1={_stripe(self._keys[0], stamp, body).decode()}"}


class Slack:
    """Slack's ``X-Slack-Signature``: ``v0=…``, HMAC with SHA-256 over version, time and body.

    The secret is the app's signing secret; several are for rotation: any of them will do. ``tolerance`` is how many
    seconds ``X-Slack-Request-Timestamp`` may be off, either way. There is no delivery id; events have one in the body.

    Raises:
        ValueError: without a secret, with an empty one, or for a tolerance that is not above 0.
        TypeError: for a secret that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _SLACK.lower()

    def __init__(self, *secrets: str | bytes, tolerance: float = 300.0) -> None:
        self._keys = keys_of(secrets)
        self._tolerance = check_tolerance(tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """``""`` for a request that Slack signed a short time ago.

        Raises:
            VerificationError: for anything else.
        """
        given, stamp = credential(headers, _SLACK), header(headers, _SLACK_TIME)
        check_time(stamp, _SLACK_TIME, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        check_matches([_slack(key, stamp, content) for key in self._keys], [encoded(given)], _SLACK)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """The same for each request that signs this time and body; of a verified one."""
        return _slack(self._keys[0], header(headers, _SLACK_TIME), body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """The headers of a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_SLACK_TIME.lower(): stamp, _SLACK.lower(): _slack(self._keys[0], stamp, body).decode()}


def _stripe_parts(text: str) -> tuple[str, list[bytes]]:
    """The time, and all signatures of the version that counts; older versions are for tests and prove nothing."""
    pairs = [part.partition("=") for part in text.split(",")]
    stamps = [value for name, _, value in pairs if name == "t"]
    given = [encoded(value) for name, _, value in pairs if name == "v1"]
    if len(stamps) != 1 or not given:
        raise VerificationError(f"{_STRIPE} is not of the form t=…,v1=…")
    return stamps[0], given


def _stripe(key: bytes, stamp: str, body: bytes) -> bytes:
    return _hex(key, stamp.encode() + b"." + body)


def _slack(key: bytes, stamp: str, body: bytes) -> bytes:
    return b"v0=" + _hex(key, b"v0:" + stamp.encode() + b":" + body)


def _hex(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256").hex().encode()
