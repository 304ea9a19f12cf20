"""GitHub signatures: verification either returns an id or raises `VerificationError`."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.sources.signatures import GitHub, VerificationError

# From "Validating webhook deliveries" in GitHub's documentation.
SECRET = "It's a Secret to Everybody"
BODY = b"Hello, World!"
SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"


def signed(body: bytes = BODY, secret: bytes = SECRET.encode()) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()}


def test_the_example_of_github_is_accepted() -> None:
    headers = {"x-hub-signature-256": SIGNATURE, "x-github-delivery": DELIVERY}
    assert GitHub(SECRET).verify(headers, BODY, now=0) == DELIVERY
    assert GitHub(SECRET.encode()).verify(headers, BODY, now=0) == DELIVERY


def test_a_delivery_without_an_id_is_accepted() -> None:
    assert GitHub(SECRET).verify(signed(), BODY, now=0) == ""


@pytest.mark.parametrize("identity", ["ü", "a\nb", "x" * 256, "\udcff"])
def test_an_id_that_cannot_be_logged_is_ignored(identity: str) -> None:
    assert GitHub(SECRET).verify(signed() | {"x-github-delivery": identity}, BODY, now=0) == ""


def test_any_of_several_secrets_matches() -> None:
    for secret in ("old", "new"):
        assert GitHub("new", "old").verify(signed(secret=secret.encode()), BODY, now=0) == ""
    with pytest.raises(VerificationError):
        GitHub("new", "old").verify(signed(secret=b"older"), BODY, now=0)


def test_another_body_is_rejected() -> None:
    with pytest.raises(VerificationError, match="wrong"):
        GitHub(SECRET).verify(signed(), BODY + b"!", now=0)


def test_a_missing_signature_is_rejected_with_a_remedy() -> None:
    with pytest.raises(VerificationError, match="no signature; set the same secret"):
        GitHub(SECRET).verify({}, BODY, now=0)


def test_a_signature_with_sha1_alone_is_rejected() -> None:
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
def test_an_almost_right_signature_is_rejected(signature: str) -> None:
    with pytest.raises(VerificationError):
        GitHub(SECRET).verify({"x-hub-signature-256": signature}, BODY, now=0)


def test_error_messages_do_not_contain_the_right_signature() -> None:
    with pytest.raises(VerificationError) as refused:
        GitHub(SECRET).verify({"x-hub-signature-256": "sha256=00"}, BODY, now=0)
    assert SIGNATURE[7:] not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(GitHub(SECRET))


def test_empty_secrets_raise() -> None:
    with pytest.raises(ValueError, match="no secret"):
        GitHub()
    for empty in ("", b""):
        with pytest.raises(ValueError, match="secret is empty"):
            GitHub("good", empty)
    with pytest.raises(TypeError, match="environment variable"):
        GitHub(None)  # type: ignore[arg-type]


# Text that an HTTP library may decode from bytes on the wire, including lone surrogates.
HEADER_TEXT = st.one_of(
    st.text(st.characters(codec=None)),
    st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.binary().map(lambda raw: "sha256=" + raw.decode("latin-1")),
    st.binary(min_size=32, max_size=32).map(lambda raw: "sha256=" + raw.hex()),
)
NAMES = st.one_of(st.sampled_from(["x-hub-signature-256", "x-hub-signature", "x-github-delivery"]), HEADER_TEXT)


@given(headers=st.dictionaries(NAMES, HEADER_TEXT), body=st.binary(), now=st.floats())
def test_random_input_raises_only_verification_error(headers: dict[str, str], body: bytes, now: float) -> None:
    with pytest.raises(VerificationError):
        GitHub(SECRET, b"\xff\x00").verify(headers, body, now=now)


@given(headers=st.dictionaries(NAMES, HEADER_TEXT), body=st.binary(), secret=st.binary(min_size=1))
def test_signed_requests_are_accepted_with_any_other_headers(
    headers: dict[str, str], body: bytes, secret: bytes
) -> None:
    identity = GitHub(secret).verify(headers | signed(body, secret), body, now=0)
    assert identity in ("", headers.get("x-github-delivery"))
