"""Webhook signatures. The verifiers are pure functions of the headers and body.

A verifier has a method ``verify(headers, body, *, now)``. The header names are in lower case, the body is unchanged,
and ``now`` is in seconds since the epoch. It returns the delivery's id, or ``""`` if the scheme has none. If the
request is not valid, it raises `VerificationError`. It never raises any other error. It does not use the network, read
the clock or log anything.

Each scheme also has a method ``sign(body, *, now, delivery_id)``, which returns the headers that its own ``verify``
accepts. Use it in senders and in tests of receivers.

Error messages describe what is wrong, but never contain the correct value. No error message or ``repr`` contains a
secret. Signatures are compared in constant time.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from lifecycle._durations import in_seconds
from lifecycle._util import needs_extra
from lifecycle.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from lifecycle._durations import Duration

__all__ = ["GitHub", "GitLab", "Hmac", "Slack", "StandardWebhooks", "Stripe", "VerificationError", "Verifier"]

#: The maximum number of characters in an id. Longer text is not accepted as an id.
_LONGEST_ID = 255

#: Seconds since the epoch. Longer numbers are never valid, and Python refuses to parse thousands of digits.
_SECONDS = re.compile(r"[0-9]{1,15}")

#: The maximum number of signatures in a header. Rotating secrets requires two or three signatures. We limit the number
#: because verifying an asymmetric signature is expensive, and any client can send signatures.
_MOST_SIGNATURES = 16

#: The number of bytes in a public key, and in a private key's seed. The public key may follow the seed.
_KEY_SIZE = 32


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


class _Sent(NamedTuple):
    """The signatures of a request, and what is signed together with its body."""

    #: The signatures, one of which must match.
    given: list[str]
    #: The time that was signed, or "" if the scheme has none.
    stamp: str = ""
    #: The id of the delivery, or "" if it has none.
    identity: str = ""


class _Scheme:
    """The steps of all schemes. A subclass defines which headers it reads and writes, and which bytes it signs."""

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = ""
    #: The names in error messages: of the header, of the header with the time, and of what the header contains.
    _header = _time_header = ""
    _credential = "signature"
    _wrong = "the signature in {} is wrong: the secret is wrong or the body was changed"
    #: The maximum number of seconds between the signed time and now, or None if the scheme signs no time.
    _tolerance: float | None = None

    def __init__(self, *secrets: str | bytes) -> None:
        if not secrets:
            raise ValueError("no secret was passed; use the one that is configured at the sender")
        self._keys = tuple(map(self._key_of, secrets))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._keys)} secret{'s' if len(self._keys) > 1 else ''}>"

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the id of a valid request, or ``""`` if it has none.

        Raises:
            VerificationError: if the request is not valid. The message describes what is wrong, but never contains the
                correct value.
        """
        if not isinstance(headers.get(self.credential_header), str):
            raise VerificationError(
                f"the request has no {self._credential}; set the same secret at the sender ({self._header})"
            )
        sent = self._read(headers)
        if self._tolerance is not None:
            _check_time(sent.stamp, self._time_header, now=now, tolerance=self._tolerance)
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise VerificationError(f"the body must be bytes, got {type(body).__name__}; verify the unchanged body")
        content = self._head(sent) + bytes(body)
        given = [_encoded(each) for each in sent.given]
        # Try all keys, so that the time taken does not depend on which one matches.
        if not any([self._matches(key, content, given) for key in self._keys]):  # noqa: C419
            raise VerificationError(self._wrong.format(self._header))
        return sent.identity

    def sign(self, body: bytes, *, now: float | None = None, delivery_id: str = "") -> dict[str, str]:
        """Return the headers for a request with this body, signed with the first secret.

        Raises:
            ValueError: if the scheme signs the id and cannot sign this one, or if the first secret is a public key.
            TypeError: if the scheme signs the time, and ``now`` is missing.
        """
        if now is None and self._tolerance is not None:
            raise TypeError(f"{type(self).__name__} signs the time; pass now=time.time()")
        sent = _Sent([], str(int(now or 0)), delivery_id)
        signature = self._signature(self._keys[0], self._head(sent) + body)
        return self._headers(sent, signature.decode("utf-8", "surrogateescape"))

    def _key_of(self, secret: str | bytes) -> Any:
        return _key_of(secret)

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        return _Sent([headers[self.credential_header]])

    def _head(self, sent: _Sent) -> bytes:  # noqa: ARG002  # schemes that sign more than the body
        """Return what is signed before the body."""
        return b""

    def _matches(self, key: Any, content: bytes, given: list[bytes]) -> bool:
        """Compare all signatures, so that the time taken does not depend on which one matches."""
        expected = self._signature(key, content)
        return any([hmac.compare_digest(expected, each) for each in given])  # noqa: C419

    def _signature(self, key: Any, content: bytes) -> bytes:
        return hmac.digest(key, content, "sha256").hex().encode()

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:  # noqa: ARG002  # as for `_head`
        return {self.credential_header: signature}


class Hmac(_Scheme):
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
        super().__init__(*secrets)
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ValueError(f"header={header!r} is not a valid header name; use one such as 'X-Signature'")
        try:
            hmac.digest(b"key", b"", algorithm)
        except (ValueError, TypeError, AttributeError):
            raise ValueError(
                f"algorithm={algorithm!r} cannot be used for an HMAC; use one of hashlib's, such as 'sha256'"
            ) from None
        if encoding not in ("hex", "base64"):
            raise ValueError(f"encoding={encoding!r} is not known; use 'hex' or 'base64'")
        # A signature follows the prefix, so a trailing space in the prefix is not lost.
        if _lost_in_transit(f"{prefix}.".encode("utf-8", "surrogateescape")):
            raise ValueError(
                f"prefix={prefix!r} begins with a space or contains control characters; it cannot be sent in a header"
            )
        self.credential_header: str = header.lower()
        self._header, self._algorithm, self._encoding, self._prefix = header, algorithm, encoding, prefix

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        given = headers[self.credential_header]
        if not given.startswith(self._prefix):
            raise VerificationError(f"the signature in {self._header} does not begin with {self._prefix!r}")
        return _Sent([given])

    def _signature(self, key: bytes, content: bytes) -> bytes:
        digest = hmac.digest(key, content, self._algorithm)
        encoded = base64.b64encode(digest).decode() if self._encoding == "base64" else digest.hex()
        return _encoded(self._prefix + encoded)


class GitHub(Hmac):
    """GitHub's ``X-Hub-Signature-256``: an HMAC-SHA256 of the body, in hexadecimal.

    SHA-1, which GitHub also sends for old receivers, is not accepted. The delivery id comes from ``X-GitHub-Delivery``,
    which is not signed.

    Args:
        secrets: One or more secrets. A signature made with any of the secrets is valid, so you can rotate them.

    Raises:
        ValueError: if a secret is missing or empty.
        TypeError: if a secret is neither text nor bytes.
    """

    def __init__(self, *secrets: str | bytes) -> None:
        super().__init__(*secrets, header="X-Hub-Signature-256", prefix="sha256=")

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the delivery id of a request that GitHub signed, or ``""`` if it has no id.

        Raises:
            VerificationError: if the request is not valid.
        """
        if "x-hub-signature" in headers and self.credential_header not in headers:
            raise VerificationError(
                "the request is signed only with SHA-1, which is not accepted; send X-Hub-Signature-256"
            )
        return super().verify(headers, body, now=now)

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        return super()._read(headers)._replace(identity=_identity(headers.get("x-github-delivery")))

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:
        named = {"x-github-delivery": sent.identity} if sent.identity else {}
        return {self.credential_header: signature, **named}


class GitLab(_Scheme):
    """GitLab's secret token, ``X-Gitlab-Token``. The header contains the secret itself, and the body is not signed.

    The delivery id comes from ``Idempotency-Key``, which is the same for all retries. Before GitLab 17.4, it comes from
    ``X-Gitlab-Webhook-UUID`` or ``X-Gitlab-Event-UUID``.

    Args:
        tokens: One or more tokens. Any of the tokens is valid, so you can rotate them.

    Raises:
        ValueError: if a token is missing or empty, or cannot be sent in a header.
        TypeError: if a token is neither text nor bytes.
    """

    credential_header = "x-gitlab-token"
    _header = "X-Gitlab-Token"
    _credential = "token"
    _wrong = "the token in {} is wrong; set the same secret token at the sender"
    #: In order of preference. The first id is the same for each retry, the second is new for each request, and the
    #: third is shared by hooks that trigger each other.
    _ids = ("idempotency-key", "x-gitlab-webhook-uuid", "x-gitlab-event-uuid")

    def __init__(self, *tokens: str | bytes) -> None:
        super().__init__(*tokens)
        if any(map(_lost_in_transit, self._keys)):
            raise ValueError(
                "a token that begins or ends with a space, or contains control characters, cannot be sent in a header"
            )

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        identity = next(filter(None, (_identity(headers.get(name)) for name in self._ids)), "")
        return _Sent([headers[self.credential_header]], identity=identity)

    def _signature(self, key: bytes, content: bytes) -> bytes:  # noqa: ARG002  # the token is all that is sent
        return key

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:
        return {self.credential_header: signature, **({self._ids[0]: sent.identity} if sent.identity else {})}


# -- schemes that sign the time --------------------------------------------------------------------------------


class _Timed(_Scheme):
    def __init__(self, *secrets: str | bytes, tolerance: Duration = 300.0) -> None:
        super().__init__(*secrets)
        self._tolerance = in_seconds("tolerance", tolerance)


class _Unnamed(_Timed):
    """A scheme without ids, whose idempotency key is the signature of the time and the body."""

    def replay_key(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the idempotency key of a verified request, which depends only on the signed time and the body."""
        return self._signature(self._keys[0], self._head(self._read(headers)) + body).decode()


class Stripe(_Unnamed):
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

    credential_header = "stripe-signature"
    _header = _time_header = "Stripe-Signature"

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        """Return the time and all signatures of version 1. Other versions are meant for tests and prove nothing."""
        pairs = [part.partition("=") for part in headers[self.credential_header].split(",")]
        stamps = [value for name, _, value in pairs if name == "t"]
        given = [value for name, _, value in pairs if name == "v1"]
        if len(stamps) != 1 or not given:
            raise VerificationError(f"{self._header} does not have the form t=…,v1=…")
        return _Sent(given, stamps[0])

    def _head(self, sent: _Sent) -> bytes:
        return f"{sent.stamp}.".encode()

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:
        return {self.credential_header: f"t={sent.stamp},v1={signature}"}


class Slack(_Unnamed):
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

    credential_header = "x-slack-signature"
    _header, _time_header = "X-Slack-Signature", "X-Slack-Request-Timestamp"

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        return _Sent([headers[self.credential_header]], _required(headers, self._time_header))

    def _head(self, sent: _Sent) -> bytes:
        return f"v0:{sent.stamp}:".encode()

    def _signature(self, key: bytes, content: bytes) -> bytes:
        return b"v0=" + super()._signature(key, content)

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:
        return {self._time_header.lower(): sent.stamp, self.credential_header: signature}


class StandardWebhooks(_Timed):
    """The scheme of the Standard Webhooks specification: ``v1`` (HMAC-SHA256) and ``v1a`` (Ed25519).

    A secret is ``whsec_…`` (shared by both sides) or ``whpk_…`` (the sender's public key, which needs the extra
    ``ed25519``). Each kind of secret verifies only signatures of its own version. Text without a prefix is a shared
    secret in base64. Bytes without a prefix are the key itself. ``whsk_…`` is a private key, used by senders.

    The header may contain several signatures, one of which must match. The delivery id comes from ``webhook-id``, which
    is signed.

    Args:
        secrets: One or more secrets. A signature made with any of the secrets is valid, so you can rotate them.
        tolerance: The maximum number of seconds between ``webhook-timestamp`` and now, in either direction.

    Raises:
        ValueError: if a secret is missing, empty or not base64, or the tolerance is not greater than 0.
        TypeError: if a secret is neither text nor bytes.
        ModuleNotFoundError: if a secret is ``whpk_…`` or ``whsk_…`` and the extra ``ed25519`` is not installed.
    """

    credential_header = _header = "webhook-signature"
    _time_header = "webhook-timestamp"
    _wrong = "no signature in {} is valid: the secret is wrong or the body was changed"

    def _key_of(self, secret: str | bytes) -> bytes | _KeyPair:
        text = _key_of(secret)
        if text.startswith((b"whpk_", b"whsk_")):
            return _KeyPair.read(text)
        if isinstance(secret, str) or text.startswith(b"whsec_"):
            return _key_of(_decoded(text.removeprefix(b"whsec_")))
        return text

    def _read(self, headers: Mapping[str, str]) -> _Sent:
        given = headers[self.credential_header].split()
        if len(given) > _MOST_SIGNATURES:
            raise VerificationError(f"{self._header} has more than {_MOST_SIGNATURES} signatures")
        identity, stamp = _required(headers, "webhook-id"), _required(headers, self._time_header)
        if not _can_be_signed(identity):
            raise VerificationError(
                f"webhook-id is not a valid id: printable ASCII without a dot, at most {_LONGEST_ID} characters"
            )
        return _Sent(given, stamp, identity)

    def _head(self, sent: _Sent) -> bytes:
        if not _can_be_signed(sent.identity):
            raise ValueError(f"delivery_id={sent.identity!r} is not a valid id; use printable ASCII without a dot")
        return f"{sent.identity}.{sent.stamp}.".encode()

    def _matches(self, key: bytes | _KeyPair, content: bytes, given: list[bytes]) -> bool:
        if isinstance(key, bytes):
            return super()._matches(key, content, given)
        return any([key.verifies(content, each) for each in given])  # noqa: C419  # tries all, as for a shared key

    def _signature(self, key: bytes | _KeyPair, content: bytes) -> bytes:
        if isinstance(key, bytes):
            return b"v1," + base64.b64encode(hmac.digest(key, content, "sha256"))
        return key.sign(content)

    def _headers(self, sent: _Sent, signature: str) -> dict[str, str]:
        return {"webhook-id": sent.identity, self._time_header: sent.stamp, self.credential_header: signature}


def _can_be_signed(identity: str) -> bool:
    """Return whether ``identity`` is a valid id. With a dot in it, one signature would be valid for other contents."""
    return bool(_identity(identity)) and "." not in identity


class _KeyPair(NamedTuple):
    """An Ed25519 key for version ``v1a``. Without a private key, it can verify signatures but not create them."""

    public: Ed25519PublicKey
    private: Ed25519PrivateKey | None = None

    @classmethod
    def read(cls, text: bytes) -> _KeyPair:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        except ModuleNotFoundError as error:
            what = "an Ed25519 key (whpk_… or whsk_…)"
            raise ModuleNotFoundError(needs_extra(what, "cryptography", "ed25519"), name=error.name) from error
        is_public, key = text.startswith(b"whpk_"), _decoded(text[5:])
        if len(key) != _KEY_SIZE and (is_public or len(key) != 2 * _KEY_SIZE):
            raise ValueError(f"an Ed25519 key has {_KEY_SIZE} bytes, not {len(key)}; copy the whole whpk_… or whsk_…")
        if is_public:
            return cls(Ed25519PublicKey.from_public_bytes(key))
        private = Ed25519PrivateKey.from_private_bytes(key[:_KEY_SIZE])
        return cls(private.public_key(), private)

    def verifies(self, content: bytes, given: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        if not given.startswith(b"v1a,"):
            return False
        try:
            self.public.verify(base64.b64decode(given[4:], validate=True), content)
        except (InvalidSignature, ValueError):
            return False
        return True

    def sign(self, content: bytes) -> bytes:
        if self.private is None:
            raise ValueError("whpk_… is a public key, which can only verify; sign with the matching whsk_…")
        return b"v1a," + base64.b64encode(self.private.sign(content))


# -- secrets and headers ---------------------------------------------------------------------------------------


def _key_of(secret: str | bytes) -> bytes:
    """Return a secret as a key. Text that comes from an environment variable is converted back to its bytes."""
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


def _decoded(text: bytes) -> bytes:
    """Decode base64 with or without its padding."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError("the secret is not base64; copy the whole whsec_… or whpk_… that the sender shows") from None


def _lost_in_transit(value: bytes) -> bool:
    return value != value.strip() or any(byte < ord(" ") or byte == 0x7F for byte in value)  # noqa: PLR2004  # DEL


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name.lower())
    if not isinstance(value, str):
        raise VerificationError(f"the request has no {name}")
    return value


def _check_time(stamp: str, name: str, *, now: float, tolerance: float) -> None:
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


def _encoded(text: str) -> bytes:
    """Return the bytes of a header's text, for comparison. This never raises an error."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _identity(text: object) -> str:
    """Return ``text`` if it is an id that can be logged and stored. Otherwise, return ``""``."""
    fits = isinstance(text, str) and len(text) <= _LONGEST_ID and text.isascii() and text.isprintable()
    return str(text) if fits else ""
