"""Schemes that sign the body and nothing else, and one that signs nothing.

They have no timestamp: that a request is repeated can be told by its id alone.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import TYPE_CHECKING, Literal

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.checks import any_matches, check_matches, credential, encoded, identity, unchanged
from lifecycle.sources.signatures.settings import keys_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GitHub", "GitLab", "Hmac"]

_TOKEN = "X-Gitlab-Token"  # noqa: S105  # the name of a header
#: GitLab's ids, the best first: the same for each retry; new for each request; shared by hooks that cause each other.
_GITLAB_IDS = ("idempotency-key", "x-gitlab-webhook-uuid", "x-gitlab-event-uuid")


class Hmac:
    """The scheme of everybody else: an HMAC over the body, in a header of its own.

    ``header`` holds ``prefix`` and then the digest, in hexadecimal digits (lower case) or base64. ``algorithm`` is
    one that ``hashlib`` knows. Several secrets are for rotation: any of them will do. There is no delivery id.

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
        self._keys = keys_of(secrets)
        self._header = _header_name(header)
        #: Without this header, `verify` refuses whatever the body is. In lower case.
        self.credential_header: str = self._header.lower()
        self._algorithm = _algorithm(algorithm)
        if encoding not in ("hex", "base64"):
            raise ValueError(f"encoding={encoding!r} is not known; give 'hex' or 'base64'")
        self._encoding = encoding
        # Followed by a signature, space at its end gets through.
        if _lost_on_the_way(f"{prefix}.".encode("utf-8", "surrogateescape")):
            raise ValueError(f"prefix={prefix!r} begins with space or has control characters, and fits into no header")
        self._prefix = prefix

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # no timestamp here
        """``""`` for a request that was signed with one of the secrets.

        Raises:
            VerificationError: for anything else.
        """
        given = credential(headers, self._header)
        if not given.startswith(self._prefix):
            raise VerificationError(f"the signature in {self._header} does not begin with {self._prefix!r}")
        content = unchanged(body)
        expected = [self._signature(key, content) for key in self._keys]
        check_matches(expected, [encoded(given.removeprefix(self._prefix))], self._header)
        return ""

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """The headers of a request with this body, signed with the first secret."""
        return {self.credential_header: self._prefix + self._signature(self._keys[0], body).decode()}

    def _signature(self, key: bytes, body: bytes) -> bytes:
        digest = hmac.digest(key, body, self._algorithm)
        return base64.b64encode(digest) if self._encoding == "base64" else digest.hex().encode()


class GitHub:
    """GitHub's ``X-Hub-Signature-256``: HMAC with SHA-256 over the body, in hexadecimal digits.

    Several secrets are for rotation: any of them will do. SHA-1, which GitHub sends beside it for the sake of old
    receivers, is not accepted. The delivery id is ``X-GitHub-Delivery``, which nobody signs.

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
        """The delivery id of a request that GitHub signed, or ``""``.

        Raises:
            VerificationError: for anything else; the message says what is wrong, never what would be right.
        """
        if "x-hub-signature" in headers and "x-hub-signature-256" not in headers:
            raise VerificationError("the request is signed with SHA-1 only, which is refused; send X-Hub-Signature-256")
        self._hmac.verify(headers, body, now=now)
        return identity(headers.get("x-github-delivery"))

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:
        """The headers of a request with this body, signed with the first secret."""
        return {**self._hmac.sign(body, now=now), **({"x-github-delivery": delivery_id} if delivery_id else {})}


class GitLab:
    """GitLab's secret token, ``X-Gitlab-Token``: the secret itself, which says nothing about the body.

    Several tokens are for rotation: any of them will do. The delivery id is ``Idempotency-Key``, which retries share;
    before GitLab 17.4 it is ``X-Gitlab-Webhook-UUID`` or ``X-Gitlab-Event-UUID``.

    Raises:
        ValueError: without a token, with an empty one, or with one that no header can hold.
        TypeError: for a token that is neither text nor bytes.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _TOKEN.lower()

    def __init__(self, *tokens: str | bytes) -> None:
        self._tokens = keys_of(tokens)
        if any(_lost_on_the_way(token) for token in self._tokens):
            raise ValueError("a token that begins or ends with space, or has control characters, fits into no header")

    def __repr__(self) -> str:
        return shown(self, len(self._tokens))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # only the token
        """The delivery id of a request that has one of the tokens, or ``""``.

        Raises:
            VerificationError: for anything else.
        """
        if not any_matches(self._tokens, [encoded(credential(headers, _TOKEN, "token"))]):
            raise VerificationError(f"the token in {_TOKEN} is wrong; set the same secret token at the sender")
        return next(filter(None, (identity(headers.get(name)) for name in _GITLAB_IDS)), "")

    def sign(self, body: bytes, *, now: float = 0.0, delivery_id: str = "") -> dict[str, str]:  # noqa: ARG002  # as all
        """The headers of a request with the first token."""
        token = self._tokens[0].decode("utf-8", "surrogateescape")
        return {_TOKEN.lower(): token, **({_GITLAB_IDS[0]: delivery_id} if delivery_id else {})}


def _lost_on_the_way(value: bytes) -> bool:
    return value != value.strip() or any(byte < ord(" ") or byte == 0x7F for byte in value)  # noqa: PLR2004  # DEL


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"header={name!r} is no name of a header; give one such as 'X-Signature'")
    return name


def _algorithm(name: str) -> str:
    try:
        hmac.digest(b"key", b"", name)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"algorithm={name!r} makes no HMAC; give one of hashlib's, such as 'sha256'") from None
    return name
