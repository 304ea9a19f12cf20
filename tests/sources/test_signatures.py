"""GitHub's signatures: what is taken, and that nothing else comes out than an id or a `VerificationError`."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.sources.signatures import GitHub, VerificationError

# From "Validating webhook deliveries" of GitHub's documentation.
SECRET = "It's a Secret to Everybody"
BODY = b"Hello, World!"
SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"


def signed(body: bytes = BODY, secret: bytes = SECRET.encode()) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()}


def test_the_documented_vector_is_accepted() -> None:
    headers = {"x-hub-signature-256": SIGNATURE, "x-github-delivery": DELIVERY}
    assert GitHub(SECRET).verify(headers, BODY, now=0) == DELIVERY
    assert GitHub(SECRET.encode()).verify(headers, BODY, now=0) == DELIVERY


def test_a_delivery_without_an_id_is_accepted_without_one() -> None:
    assert GitHub(SECRET).verify(signed(), BODY, now=0) == ""


@pytest.mark.parametrize("identity", ["ü", "a\nb", "x" * 256, "\udcff"])
def test_an_id_that_cannot_be_logged_is_no_id(identity: str) -> None:
    assert GitHub(SECRET).verify(signed() | {"x-github-delivery": identity}, BODY, now=0) == ""


def test_any_of_several_secrets_will_do() -> None:
    for secret in ("old", "new"):
        assert GitHub("new", "old").verify(signed(secret=secret.encode()), BODY, now=0) == ""
    with pytest.raises(VerificationError):
        GitHub("new", "old").verify(signed(secret=b"older"), BODY, now=0)


def test_another_body_is_refused() -> None:
    with pytest.raises(VerificationError, match="wrong"):
        GitHub(SECRET).verify(signed(), BODY + b"!", now=0)


def test_no_signature_is_refused_and_told_what_to_do() -> None:
    with pytest.raises(VerificationError, match="no signature; set the same secret"):
        GitHub(SECRET).verify({}, BODY, now=0)


def test_a_signature_with_sha1_alone_is_refused_by_name() -> None:
    weak = "sha1=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest()
    with pytest.raises(VerificationError, match="SHA-1"):
        GitHub(SECRET).verify({"x-hub-signature": weak}, BODY, now=0)
    with pytest.raises(VerificationError, match="sha256="):
        GitHub(SECRET).verify({"x-hub-signature-256": weak}, BODY, now=0)


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "sha256",
        "sha256=",
        SIGNATURE[:-1],
        SIGNATURE + "0",
        SIGNATURE.upper(),
        " " + SIGNATURE,
        SIGNATURE + ", " + SIGNATURE,
    ],
)
def test_what_is_almost_the_signature_is_refused(signature: str) -> None:
    with pytest.raises(VerificationError):
        GitHub(SECRET).verify({"x-hub-signature-256": signature}, BODY, now=0)


def test_a_message_never_contains_what_would_be_right() -> None:
    with pytest.raises(VerificationError) as refused:
        GitHub(SECRET).verify({"x-hub-signature-256": "sha256=00"}, BODY, now=0)
    assert SIGNATURE[7:] not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(GitHub(SECRET))


def test_secrets_that_protect_nothing_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no secret"):
        GitHub()
    for empty in ("", b""):
        with pytest.raises(ValueError, match="empty secret"):
            GitHub("good", empty)
    with pytest.raises(TypeError, match="environment variable"):
        GitHub(None)  # type: ignore[arg-type]


# Whatever an HTTP library makes of bytes on the wire: text with lone surrogates among it.
HEADER_TEXT = st.one_of(
    st.text(st.characters(codec=None)),
    st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.binary().map(lambda raw: "sha256=" + raw.decode("latin-1")),
    st.binary(min_size=32, max_size=32).map(lambda raw: "sha256=" + raw.hex()),
)
NAMES = st.one_of(st.sampled_from(["x-hub-signature-256", "x-hub-signature", "x-github-delivery"]), HEADER_TEXT)


@given(headers=st.dictionaries(NAMES, HEADER_TEXT), body=st.binary(), now=st.floats())
def test_whatever_arrives_is_refused_with_a_verification_error(
    headers: dict[str, str], body: bytes, now: float
) -> None:
    with pytest.raises(VerificationError):
        GitHub(SECRET, b"\xff\x00").verify(headers, body, now=now)


@given(headers=st.dictionaries(NAMES, HEADER_TEXT), body=st.binary(), secret=st.binary(min_size=1))
def test_whatever_is_signed_is_accepted_whatever_else_it_says(
    headers: dict[str, str], body: bytes, secret: bytes
) -> None:
    identity = GitHub(secret).verify(headers | signed(body, secret), body, now=0)
    assert identity in ("", headers.get("x-github-delivery"))
