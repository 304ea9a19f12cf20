"""What a scheme is made with, checked where it is made: a verifier that protects nothing is never there.

No message here contains a secret, nor does the ``repr`` of a scheme.
"""

from __future__ import annotations

__all__ = ["check_tolerance", "key_of", "keys_of", "shown"]


def keys_of(secrets: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
    """The secrets as keys.

    Raises:
        ValueError: without a secret, or with an empty one.
        TypeError: for a secret that is neither text nor bytes.
    """
    if not secrets:
        raise ValueError("no secret was given; pass the one that is set at the sender")
    return tuple(key_of(secret) for secret in secrets)


def key_of(secret: str | bytes) -> bytes:
    """One secret as a key; text from the environment gives back the very bytes that stand there."""
    if not isinstance(secret, (str, bytes)):
        raise TypeError(f"a secret is text or bytes, not {type(secret).__name__}; is the environment variable set?")
    if not secret:
        raise ValueError("an empty secret protects nothing; pass the one that is set at the sender")
    try:
        return secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ValueError("the secret has half of a surrogate pair, which is no character; pass it as bytes") from None


def check_tolerance(seconds: float) -> float:
    """The tolerance, if it lets anything through.

    Raises:
        ValueError: for one that is not above zero.
    """
    if not seconds > 0:
        raise ValueError(f"tolerance={seconds!r} would let nothing through; give seconds above 0")
    return seconds


def shown(scheme: object, secrets: int) -> str:
    """A ``repr`` that says how many secrets there are, and none of them."""
    return f"<{type(scheme).__name__}: {secrets} secret{'s' if secrets > 1 else ''}>"
