"""The signature schemes of GitHub, GitLab, Stripe and Slack, and a generic HMAC scheme for other senders.

GitHub, GitLab and `Hmac` have no timestamp, so a repeated request can be recognised only by its id. Stripe and Slack
have no id but sign the time together with the body, so a repeated request is recognised by its signed content. Error
messages describe what is wrong, but never contain the correct value. No error message or ``repr`` contains a secret.
Signatures are compared in constant time.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import TYPE_CHECKING, Literal, Protocol

from lifecycle._durations import in_seconds
from lifecycle.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lifecycle._durations import Duration

__all__ = [
    "GitHub",
    "GitLab",
    "Hmac",
    "Slack",
    "Stripe",
    "Verifier",
    "Verify",
    "any_matches",
    "check_time",
    "credential",
    "encoded",
    "header",
    "identity",
    "key_of",
    "shown",
    "unchanged",
]

_STRIPE = "Stripe-Signature"
_SLACK = "X-Slack-Signature"
_SLACK_TIME = "X-Slack-Request-Timestamp"

#: The maximum number of characters in an id. Longer text is not accepted as an id.
_LONGEST_ID = 255

#: Seconds since the epoch. Longer numbers are never valid, and Python refuses to parse thousands of digits.
_SECONDS = re.compile(r"[0-9]{1,15}")

_TOKEN = "X-Gitlab-Token"  # noqa: S105  # the name of a header
#: GitLab's ids, in order of preference. The first one is the same for each retry, the second is new for each request,
#: and the third is shared by hooks that trigger each other.
_GITLAB_IDS = ("idempotency-key", "x-gitlab-webhook-uuid", "x-gitlab-event-uuid")


class Hmac:
    """An HMAC of the body, sent in a header.

    Use this for senders without a dedicated scheme in this module. Deliveries have no id.

    Args:
        secrets: One or more secrets. A signature made with any of the secrets is valid, so you can rotate them.
        header: The name of the header that contains the signature.
        algorithm: The name of a hash function in ``hashlib``.
        encoding: The encoding of the digest: ``"hex"`` (lower case) or ``"base64"``.
        prefix: The text before the digest.

    Raises:
        ValueError: if a secret is missing or empty, or the header, algorithm, encoding or prefix is invalid.
        TypeError: if a secret is neither text nor bytes.
    """

    def __init__(
        self,
        *secrets: str | bytes,
        header: str,
        algorithm: str = "sha256",
        encoding: Literal["hex", "base64"] = "hex",
        prefix: str = "",
    ) -> None:
        self._keys = _keys_of(secrets)
        self._header = _header_name(header)
        #: The lower-case name of the header that `verify` requires in every request.
        self.credential_header: str = self._header.lower()
        self._algorithm = _algorithm(algorithm)
        if encoding not in ("hex", "base64"):
            raise ValueError(f"encoding={encoding!r} is not known; use 'hex' or 'base64'")
        self._encoding = encoding
        # A signature follows the prefix, so a trailing space in the prefix is not lost.
        if _lost_in_transit(f"{prefix}.".encode("utf-8", "surrogateescape")):
            raise ValueError(
                f"prefix={prefix!r} begins with a space or contains control characters; it cannot be sent in a header"
            )
        self._prefix = prefix

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # no timestamp here
        """Return ``""`` if the request was signed with one of the secrets.

        Raises:
            VerificationError: if the request is not valid.
        """
        given = credential(headers, self._header)
        if not given.startswith(self._prefix):
            raise VerificationError(f"the signature in {self._header} does not begin with {self._prefix!r}")
        content = unchanged(body)
        expected = [self._signature(key, content) for key in self._keys]
        _check_matches(expected, [encoded(given.removeprefix(self._prefix))], self._header)
        return ""

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """Return the headers for a request with this body, signed with the first secret."""
        return {self.credential_header: self._prefix + self._signature(self._keys[0], body).decode()}

    def _signature(self, key: bytes, body: bytes) -> bytes:
        digest = hmac.digest(key, body, self._algorithm)
        return base64.b64encode(digest) if self._encoding == "base64" else digest.hex().encode()


class GitHub:
    """GitHub's ``X-Hub-Signature-256``: an HMAC-SHA256 of the body, in hexadecimal.

    SHA-1, which GitHub also sends for old receivers, is not accepted. The delivery id comes from ``X-GitHub-Delivery``,
    which is not signed.

    Args:
        secrets: One or more secrets. A signature made with any of the secrets is valid, so you can rotate them.

    Raises:
        ValueError: if a secret is missing or empty.
        TypeError: if a secret is neither text nor bytes.
    """

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = "x-hub-signature-256"

    def __init__(self, *secrets: str | bytes) -> None:
        self._secrets = len(secrets)
        self._hmac = Hmac(*secrets, header="X-Hub-Signature-256", prefix="sha256=")

    def __repr__(self) -> str:
        return shown(self, self._secrets)

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the delivery id of a request that GitHub signed, or ``""`` if it has no id.

        Raises:
            VerificationError: if the request is not valid. The message describes what is wrong, but never contains the
                correct value.
        """
        if "x-hub-signature" in headers and "x-hub-signature-256" not in headers:
            raise VerificationError(
                "the request is signed only with SHA-1, which is not accepted; send X-Hub-Signature-256"
            )
        self._hmac.verify(headers, body, now=now)
        return identity(headers.get("x-github-delivery"))

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:
        """Return the headers for a request with this body, signed with the first secret."""
        return {**self._hmac.sign(body, now=now), **({"x-github-delivery": delivery_id} if delivery_id else {})}


class GitLab:
    """GitLab's secret token, ``X-Gitlab-Token``. The header contains the secret itself, and the body is not signed.

    The delivery id comes from ``Idempotency-Key``, which is the same for all retries. Before GitLab 17.4, it comes from
    ``X-Gitlab-Webhook-UUID`` or ``X-Gitlab-Event-UUID``.

    Args:
        tokens: One or more tokens. Any of the tokens is valid, so you can rotate them.

    Raises:
        ValueError: if a token is missing or empty, or cannot be sent in a header.
        TypeError: if a token is neither text nor bytes.
    """

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = _TOKEN.lower()

    def __init__(self, *tokens: str | bytes) -> None:
        self._tokens = _keys_of(tokens)
        if any(_lost_in_transit(token) for token in self._tokens):
            raise ValueError(
                "a token that begins or ends with a space, or contains control characters, cannot be sent in a header"
            )

    def __repr__(self) -> str:
        return shown(self, len(self._tokens))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # only the token
        """Return the delivery id of a request that contains one of the tokens, or ``""`` if it has no id.

        Raises:
            VerificationError: if the request is not valid.
        """
        if not any_matches(self._tokens, [encoded(credential(headers, _TOKEN, "token"))]):
            raise VerificationError(f"the token in {_TOKEN} is wrong; set the same secret token at the sender")
        return next(filter(None, (identity(headers.get(name)) for name in _GITLAB_IDS)), "")

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """Return the headers for a request with the first token."""
        token = self._tokens[0].decode("utf-8", "surrogateescape")
        return {_TOKEN.lower(): token, **({_GITLAB_IDS[0]: delivery_id} if delivery_id else {})}


def _lost_in_transit(value: bytes) -> bool:
    return value != value.strip() or any(byte < ord(" ") or byte == 0x7F for byte in value)  # noqa: PLR2004  # DEL


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"header={name!r} is not a valid header name; use one such as 'X-Signature'")
    return name


def _algorithm(name: str) -> str:
    try:
        hmac.digest(b"key", b"", name)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"algorithm={name!r} cannot be used for an HMAC; use one of hashlib's, such as 'sha256'"
        ) from None
    return name


# -- schemes that sign the time --------------------------------------------------------------------------------


class Stripe:
    """Stripe's ``Stripe-Signature``: ``t=…,v1=…``, an HMAC-SHA256 of the time, a dot and the body.

    The header may contain several signatures, one of which must match. Deliveries have no id. The event's id is in the
    body.

    Args:
        secrets: One or more of the endpoint's secrets, including the prefix ``whsec_``. A signature made with any of
            them is valid, so you can rotate them.
        tolerance: The maximum number of seconds between the signed time and now, in either direction.

    Raises:
        ValueError: if a secret is missing or empty, or the tolerance is not greater than 0.
        TypeError: if a secret is neither text nor bytes.
    """

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = _STRIPE.lower()

    def __init__(self, *secrets: str | bytes, tolerance: Duration = 300.0) -> None:
        self._keys = _keys_of(secrets)
        self._tolerance = in_seconds("tolerance", tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return ``""`` if Stripe signed the request within the tolerance.

        Raises:
            VerificationError: if the request is not valid.
        """
        stamp, given = _stripe_parts(credential(headers, _STRIPE))
        check_time(stamp, _STRIPE, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        _check_matches([_stripe(key, stamp, content) for key in self._keys], given, _STRIPE)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the idempotency key of a verified request, which depends only on the signed time and the body."""
        stamp, _ = _stripe_parts(header(headers, _STRIPE))
        return _stripe(self._keys[0], stamp, body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """Return the headers for a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_STRIPE.lower(): f"t={stamp},v1={_stripe(self._keys[0], stamp, body).decode()}"}


class Slack:
    """Slack's ``X-Slack-Signature``: ``v0=…``, an HMAC-SHA256 of the version, the time and the body.

    Deliveries have no id. The event's id is in the body.

    Args:
        secrets: One or more of the app's signing secrets. A signature made with any of the secrets is valid, so you can
            rotate them.
        tolerance: The maximum number of seconds between ``X-Slack-Request-Timestamp`` and now, in either direction.

    Raises:
        ValueError: if a secret is missing or empty, or the tolerance is not greater than 0.
        TypeError: if a secret is neither text nor bytes.
    """

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = _SLACK.lower()

    def __init__(self, *secrets: str | bytes, tolerance: Duration = 300.0) -> None:
        self._keys = _keys_of(secrets)
        self._tolerance = in_seconds("tolerance", tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return ``""`` if Slack signed the request within the tolerance.

        Raises:
            VerificationError: if the request is not valid.
        """
        given, stamp = credential(headers, _SLACK), header(headers, _SLACK_TIME)
        check_time(stamp, _SLACK_TIME, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        _check_matches([_slack(key, stamp, content) for key in self._keys], [encoded(given)], _SLACK)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the idempotency key of a verified request, which depends only on the signed time and the body."""
        return _slack(self._keys[0], header(headers, _SLACK_TIME), body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """Return the headers for a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_SLACK_TIME.lower(): stamp, _SLACK.lower(): _slack(self._keys[0], stamp, body).decode()}


def _stripe_parts(text: str) -> tuple[str, list[bytes]]:
    """Return the time and all signatures of version 1. Other versions are meant for tests and prove nothing."""
    pairs = [part.partition("=") for part in text.split(",")]
    stamps = [value for name, _, value in pairs if name == "t"]
    given = [encoded(value) for name, _, value in pairs if name == "v1"]
    if len(stamps) != 1 or not given:
        raise VerificationError(f"{_STRIPE} does not have the form t=…,v1=…")
    return stamps[0], given


def _stripe(key: bytes, stamp: str, body: bytes) -> bytes:
    return _hex(key, stamp.encode() + b"." + body)


def _slack(key: bytes, stamp: str, body: bytes) -> bytes:
    return b"v0=" + _hex(key, b"v0:" + stamp.encode() + b":" + body)


def _hex(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256").hex().encode()


# -- verifiers -------------------------------------------------------------------------------------------------


class Verifier(Protocol):
    """The type of the ``verify`` argument of a `WebhookSource`.

    Two attributes are optional. ``credential_header`` is the lower-case name of a required header. If a request lacks
    it, the request is rejected before its body is read. If ``verify`` returns no ids, the method ``replay_key(headers,
    body)`` returns the idempotency key of a verified request.
    """

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the delivery's id, or ``""`` if it has none.

        Raises:
            VerificationError: if the request was not signed with the secret.
        """
        ...


class Verify(Protocol):
    """A `Verifier` as a plain function."""

    def __call__(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the delivery's id, or ``""`` if it has none.

        Raises:
            VerificationError: if the request was not signed with the secret.
        """
        ...


# -- settings --------------------------------------------------------------------------------------------------


def _keys_of(secrets: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
    """Return the secrets as keys.

    Raises:
        ValueError: if a secret is missing or empty.
        TypeError: if a secret is neither text nor bytes.
    """
    if not secrets:
        raise ValueError("no secret was passed; use the one that is configured at the sender")
    return tuple(key_of(secret) for secret in secrets)


def key_of(secret: str | bytes) -> bytes:
    """Return a secret as a key.

    Text that comes from an environment variable is converted back to the original bytes.
    """
    if not isinstance(secret, (str, bytes)):
        raise TypeError(
            f"a secret must be text or bytes, not {type(secret).__name__}; is the environment variable set?"
        )
    if not secret:
        raise ValueError("the secret is empty; use the one that is configured at the sender")
    try:
        return secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ValueError(
            "the secret contains half of a surrogate pair and cannot be encoded; pass it as bytes"
        ) from None


def shown(scheme: object, secrets: int) -> str:
    """Return a ``repr`` with the number of secrets instead of the secrets."""
    return f"<{type(scheme).__name__}: {secrets} secret{'s' if secrets > 1 else ''}>"


# -- steps of a verification, which raise only `VerificationError` --------------------------------------------


def credential(headers: Mapping[str, str], name: str, kind: str = "signature") -> str:
    """Return the header that authenticates the request."""
    if not isinstance(headers.get(name.lower()), str):
        raise VerificationError(f"the request has no {kind}; set the same secret at the sender ({name})")
    return header(headers, name)


def header(headers: Mapping[str, str], name: str) -> str:
    """Return the required header ``name``."""
    value = headers.get(name.lower())
    if not isinstance(value, str):
        raise VerificationError(f"the request has no {name}")
    return value


def unchanged(body: bytes) -> bytes:
    """Check that the body is bytes, and return it unchanged."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise VerificationError(f"the body must be bytes, got {type(body).__name__}; verify the unchanged body")
    return bytes(body)


def check_time(stamp: str, name: str, *, now: float, tolerance: float) -> None:
    """Reject a signature that is too old or from the future. ``name`` is the header that contains the time."""
    if not _SECONDS.fullmatch(stamp):
        raise VerificationError(f"the timestamp in {name} is not a number of seconds since 1970")
    age = now - int(stamp)
    # Unlike `abs(age) > tolerance`, this condition also rejects an age of NaN.
    if not abs(age) <= tolerance:
        when = "ahead" if age < 0 else "old"
        raise VerificationError(
            f"the timestamp in {name} is {abs(age):.0f} s {when}, but the tolerance is {tolerance:g} s; "
            "the request was repeated, or a clock is wrong"
        )


def _check_matches(expected: Iterable[bytes], given: Iterable[bytes], name: str) -> None:
    """Reject the request if none of the signatures in the header ``name`` matches."""
    if not any_matches(expected, given):
        raise VerificationError(f"the signature in {name} is wrong: the secret is wrong or the body was changed")


def any_matches(expected: Iterable[bytes], given: Iterable[bytes]) -> bool:
    """Return whether any of ``given`` is expected. The time taken does not depend on which one matches."""
    candidates = tuple(given)
    matches = False
    for each in expected:
        for candidate in candidates:
            matches |= hmac.compare_digest(each, candidate)
    return matches


def encoded(text: str) -> bytes:
    """Return the bytes of a header's text, for comparison. This never raises an error."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def identity(text: object) -> str:
    """Return ``text`` if it is an id that can be logged and stored. Otherwise, return ``""``."""
    fits = isinstance(text, str) and len(text) <= _LONGEST_ID and text.isascii() and text.isprintable()
    return str(text) if fits else ""
