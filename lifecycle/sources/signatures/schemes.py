"""The schemes of GitHub, GitLab, Stripe and Slack, and HMAC for other senders.

GitHub, GitLab and `Hmac` have no timestamp: a repeated request can be recognised by its id alone. Stripe and Slack sign
the time with the body and have no id: a repeated request is recognised by what is signed. Error messages name the
mistake, never the right value, and neither they nor a ``repr`` contain a secret. Signatures are compared in constant
time.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import TYPE_CHECKING, Literal, Protocol

from lifecycle.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "checked_tolerance",
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

#: An id that is longer is not accepted as one.
_LONGEST_ID = 255

#: Seconds since the epoch. More digits would be ages away, and Python refuses to read thousands of them.
_SECONDS = re.compile(r"[0-9]{1,15}")

_TOKEN = "X-Gitlab-Token"  # noqa: S105  # the name of a header
#: GitLab's ids, the best first: the same for each retry; new for each request; shared by hooks that cause each other.
_GITLAB_IDS = ("idempotency-key", "x-gitlab-webhook-uuid", "x-gitlab-event-uuid")


class Hmac:
    """An HMAC over the body in a header, for senders without a scheme of their own here.

    ``header`` holds ``prefix`` and then the digest, in hexadecimal digits (lower case) or base64. ``algorithm`` is
    one of ``hashlib``. Several secrets are for rotation: any of them matches. Deliveries have no id.

    Raises:
        ValueError: without a secret or with an empty one, and for a header, algorithm, encoding or prefix that cannot
            be.
        TypeError: for a secret that is neither text nor bytes.
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
        #: Without this header, `verify` refuses whatever the body is. In lower case.
        self.credential_header: str = self._header.lower()
        self._algorithm = _algorithm(algorithm)
        if encoding not in ("hex", "base64"):
            raise ValueError(f"encoding={encoding!r} is not known; give 'hex' or 'base64'")
        self._encoding = encoding
        # Followed by a signature, space at its end gets through.
        if _lost_in_transit(f"{prefix}.".encode("utf-8", "surrogateescape")):
            raise ValueError(f"prefix={prefix!r} begins with space or has control characters, and fits into no header")
        self._prefix = prefix

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # no timestamp here
        """Return ``""`` for a request that was signed with one of the secrets.

        Raises:
            VerificationError: for anything else.
        """
        given = credential(headers, self._header)
        if not given.startswith(self._prefix):
            raise VerificationError(f"the signature in {self._header} does not begin with {self._prefix!r}")
        content = unchanged(body)
        expected = [self._signature(key, content) for key in self._keys]
        _check_matches(expected, [encoded(given.removeprefix(self._prefix))], self._header)
        return ""

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """Return the headers of a request with this body, signed with the first secret."""
        return {self.credential_header: self._prefix + self._signature(self._keys[0], body).decode()}

    def _signature(self, key: bytes, body: bytes) -> bytes:
        digest = hmac.digest(key, body, self._algorithm)
        return base64.b64encode(digest) if self._encoding == "base64" else digest.hex().encode()


class GitHub:
    """GitHub's ``X-Hub-Signature-256``: HMAC with SHA-256 over the body, in hexadecimal digits.

    Several secrets are for rotation: any of them matches. SHA-1, which GitHub also sends for old receivers, is not
    accepted. The delivery id is ``X-GitHub-Delivery``, which is not signed.

    Raises:
        ValueError: without a secret, or with an empty one.
        TypeError: for a secret that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = "x-hub-signature-256"

    def __init__(self, *secrets: str | bytes) -> None:
        self._secrets = len(secrets)
        self._hmac = Hmac(*secrets, header="X-Hub-Signature-256", prefix="sha256=")

    def __repr__(self) -> str:
        return shown(self, self._secrets)

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the delivery id of a request that GitHub signed, or ``""``.

        Raises:
            VerificationError: for anything else; the message names the mistake, never the right value.
        """
        if "x-hub-signature" in headers and "x-hub-signature-256" not in headers:
            raise VerificationError("the request is signed with SHA-1 only, which is refused; send X-Hub-Signature-256")
        self._hmac.verify(headers, body, now=now)
        return identity(headers.get("x-github-delivery"))

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:
        """Return the headers of a request with this body, signed with the first secret."""
        return {**self._hmac.sign(body, now=now), **({"x-github-delivery": delivery_id} if delivery_id else {})}


class GitLab:
    """GitLab's secret token, ``X-Gitlab-Token``: the secret itself, which does not sign the body.

    Several tokens are for rotation: any of them matches. The delivery id is ``Idempotency-Key``, which retries share;
    before GitLab 17.4 it is ``X-Gitlab-Webhook-UUID`` or ``X-Gitlab-Event-UUID``.

    Raises:
        ValueError: without a token, with an empty one, or with one that no header can hold.
        TypeError: for a token that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _TOKEN.lower()

    def __init__(self, *tokens: str | bytes) -> None:
        self._tokens = _keys_of(tokens)
        if any(_lost_in_transit(token) for token in self._tokens):
            raise ValueError("a token that begins or ends with space, or has control characters, fits into no header")

    def __repr__(self) -> str:
        return shown(self, len(self._tokens))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # only the token
        """Return the delivery id of a request that has one of the tokens, or ``""``.

        Raises:
            VerificationError: for anything else.
        """
        if not any_matches(self._tokens, [encoded(credential(headers, _TOKEN, "token"))]):
            raise VerificationError(f"the token in {_TOKEN} is wrong; set the same secret token at the sender")
        return next(filter(None, (identity(headers.get(name)) for name in _GITLAB_IDS)), "")

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """Return the headers of a request with the first token."""
        token = self._tokens[0].decode("utf-8", "surrogateescape")
        return {_TOKEN.lower(): token, **({_GITLAB_IDS[0]: delivery_id} if delivery_id else {})}


def _lost_in_transit(value: bytes) -> bool:
    return value != value.strip() or any(byte < ord(" ") or byte == 0x7F for byte in value)  # noqa: PLR2004  # DEL


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"header={name!r} is not a valid header name; give one such as 'X-Signature'")
    return name


def _algorithm(name: str) -> str:
    try:
        hmac.digest(b"key", b"", name)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"algorithm={name!r} makes no HMAC; give one of hashlib's, such as 'sha256'") from None
    return name


# -- schemes that sign the time --------------------------------------------------------------------------------


class Stripe:
    """Stripe's ``Stripe-Signature``: ``t=…,v1=…``, HMAC with SHA-256 over the time, a dot and the body.

    The secret is the whole ``whsec_…`` of the endpoint. Several are for rotation, here and in the header: one match
    is enough. ``tolerance`` is how many seconds the time may be off, either way. Deliveries have no id; the id of the
    event is in the body.

    Raises:
        ValueError: without a secret, with an empty one, or for a tolerance that is not above 0.
        TypeError: for a secret that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _STRIPE.lower()

    def __init__(self, *secrets: str | bytes, tolerance: float = 300.0) -> None:
        self._keys = _keys_of(secrets)
        self._tolerance = checked_tolerance(tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return ``""`` for a request that Stripe signed a short time ago.

        Raises:
            VerificationError: for anything else.
        """
        stamp, given = _stripe_parts(credential(headers, _STRIPE))
        check_time(stamp, _STRIPE, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        _check_matches([_stripe(key, stamp, content) for key in self._keys], given, _STRIPE)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the idempotency key of a verified request: the same for this time and body, in any header."""
        stamp, _ = _stripe_parts(header(headers, _STRIPE))
        return _stripe(self._keys[0], stamp, body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """Return the headers of a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_STRIPE.lower(): f"t={stamp},v1={_stripe(self._keys[0], stamp, body).decode()}"}


class Slack:
    """Slack's ``X-Slack-Signature``: ``v0=…``, HMAC with SHA-256 over version, time and body.

    The secret is the app's signing secret; several are for rotation: any of them matches. ``tolerance`` is how many
    seconds ``X-Slack-Request-Timestamp`` may be off, either way. Deliveries have no id; events have one in the body.

    Raises:
        ValueError: without a secret, with an empty one, or for a tolerance that is not above 0.
        TypeError: for a secret that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _SLACK.lower()

    def __init__(self, *secrets: str | bytes, tolerance: float = 300.0) -> None:
        self._keys = _keys_of(secrets)
        self._tolerance = checked_tolerance(tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return ``""`` for a request that Slack signed a short time ago.

        Raises:
            VerificationError: for anything else.
        """
        given, stamp = credential(headers, _SLACK), header(headers, _SLACK_TIME)
        check_time(stamp, _SLACK_TIME, now=now, tolerance=self._tolerance)
        content = unchanged(body)
        _check_matches([_slack(key, stamp, content) for key in self._keys], [encoded(given)], _SLACK)
        return ""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the idempotency key of a verified request: the same for this time and body."""
        return _slack(self._keys[0], header(headers, _SLACK_TIME), body).decode()

    def sign(self, body: bytes, *, now: float, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # it has none
        """Return the headers of a request with this body, signed with the first secret."""
        stamp = str(int(now))
        return {_SLACK_TIME.lower(): stamp, _SLACK.lower(): _slack(self._keys[0], stamp, body).decode()}


def _stripe_parts(text: str) -> tuple[str, list[bytes]]:
    """Return the time and all signatures of version 1; older versions are for tests and prove nothing."""
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


# -- verifiers -------------------------------------------------------------------------------------------------


class Verifier(Protocol):
    """The type of the ``verify`` of a `WebhookSource`.

    Two attributes are optional. The text ``credential_header`` is the name in lower case of a header without which it
    rejects any body, so that bodies without credentials are not read. If it returns no ids,
    ``replay_key(headers, body)`` returns the idempotency key of a verified request.
    """

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the id of the delivery, or ``""``.

        Raises:
            VerificationError: when the request was not made with the secret.
        """
        ...


class Verify(Protocol):
    """A `Verifier` as a plain function."""

    def __call__(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the id of the delivery, or ``""``; raise `VerificationError`."""
        ...


# -- settings --------------------------------------------------------------------------------------------------


def _keys_of(secrets: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
    """Return the secrets as keys.

    Raises:
        ValueError: without a secret, or with an empty one.
        TypeError: for a secret that is neither text nor bytes.
    """
    if not secrets:
        raise ValueError("no secret was given; pass the one that is set at the sender")
    return tuple(key_of(secret) for secret in secrets)


def key_of(secret: str | bytes) -> bytes:
    """Return one secret as a key; text from the environment becomes its original bytes."""
    if not isinstance(secret, (str, bytes)):
        raise TypeError(f"a secret is text or bytes, not {type(secret).__name__}; is the environment variable set?")
    if not secret:
        raise ValueError("an empty secret protects nothing; pass the one that is set at the sender")
    try:
        return secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ValueError("the secret has half of a surrogate pair and cannot be encoded; pass it as bytes") from None


def checked_tolerance(seconds: float) -> float:
    """Return the tolerance.

    Raises:
        ValueError: for one that is not above zero.
    """
    if not seconds > 0:
        raise ValueError(f"tolerance={seconds!r} would let nothing through; give seconds above 0")
    return seconds


def shown(scheme: object, secrets: int) -> str:
    """Return a ``repr`` with the number of secrets, and without the secrets."""
    return f"<{type(scheme).__name__}: {secrets} secret{'s' if secrets > 1 else ''}>"


# -- the steps of verifying; each raises nothing but `VerificationError` ----------------------------------------


def credential(headers: Mapping[str, str], name: str, kind: str = "signature") -> str:
    """Return the header that proves the sender of the request."""
    if not isinstance(headers.get(name.lower()), str):
        raise VerificationError(f"the request has no {kind}; set the same secret at the sender ({name})")
    return header(headers, name)


def header(headers: Mapping[str, str], name: str) -> str:
    """Return the header called ``name``, which is required."""
    value = headers.get(name.lower())
    if not isinstance(value, str):
        raise VerificationError(f"the request has no {name}")
    return value


def unchanged(body: bytes) -> bytes:
    """Return the body, which must be the bytes that were sent."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise VerificationError(f"the body must be bytes, got {type(body).__name__}; verify it as it was sent")
    return bytes(body)


def check_time(stamp: str, name: str, *, now: float, tolerance: float) -> None:
    """Reject a signature that is too old or from the future; ``name`` is the header with the time."""
    if not _SECONDS.fullmatch(stamp):
        raise VerificationError(f"the timestamp in {name} is not a number of seconds since 1970")
    age = now - int(stamp)
    # Written so that an age of NaN is rejected as well.
    if not abs(age) <= tolerance:
        when = "ahead" if age < 0 else "old"
        raise VerificationError(
            f"the timestamp in {name} is {abs(age):.0f} s {when}, and {tolerance:g} s are tolerated; "
            "a repeated request, or a clock that is wrong"
        )


def _check_matches(expected: Iterable[bytes], given: Iterable[bytes], name: str) -> None:
    """Reject a request if none of its signatures, from the header ``name``, is expected."""
    if not any_matches(expected, given):
        raise VerificationError(f"the signature in {name} is wrong: another secret, or another body")


def any_matches(expected: Iterable[bytes], given: Iterable[bytes]) -> bool:
    """Return whether one of ``given`` is expected; the time does not depend on which."""
    candidates = tuple(given)
    matches = False
    for each in expected:
        for candidate in candidates:
            matches |= hmac.compare_digest(each, candidate)
    return matches


def encoded(text: str) -> bytes:
    """Return header text as the bytes that arrived, to be compared; never raise."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def identity(text: object) -> str:
    """Return an id that can be logged and stored, or ``""``."""
    fits = isinstance(text, str) and len(text) <= _LONGEST_ID and text.isascii() and text.isprintable()
    return str(text) if fits else ""
