"""For any input, a verifier returns the id or raises `VerificationError`, and accepts nothing that was not signed.

``LIFECYCLE_SEED`` repeats a run. `tests.chaos.fuzz` tries more inputs.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lifecycle.sources.signatures import (
    GitHub,
    GitLab,
    Hmac,
    Slack,
    StandardWebhooks,
    Stripe,
    VerificationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

INPUTS = 5_000
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))

NOW = 1_700_000_000
BODY = '{"ref": "main", "who": "jürgen"}'.encode()

SHARED = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
SCHEMES: tuple[Any, ...] = (
    GitHub("hush", b"\xff\x00"),
    StandardWebhooks(SHARED),
    StandardWebhooks(PRIVATE, SHARED),
    Stripe("hush", b"\xff\x00"),
    Slack("hush"),
    GitLab("hush", b"\xff"),
    Hmac("hush", header="X-Sig", algorithm="sha512", encoding="base64", prefix="v="),
)
SIGNED: tuple[dict[str, str], ...] = tuple(each.sign(BODY, now=NOW, delivery_id="msg_1") for each in SCHEMES)

# -- arbitrary requests --------------------------------------------------------------------------------------------

#: Text that an HTTP library may decode from bytes on the wire, including lone surrogates.
ANYTHING = st.one_of(
    st.text(st.characters(codec=None)), st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
NUMBERS = st.one_of(st.just(str(NOW)), st.integers().map(str), st.just("9" * 5000), ANYTHING)
DIGESTS = st.one_of(st.binary(min_size=32, max_size=32).map(bytes.hex), ANYTHING)
VALUES = st.one_of(
    ANYTHING,
    NUMBERS,
    st.builds("t={},v1={}".format, NUMBERS, DIGESTS),
    st.builds("{}{}".format, st.sampled_from(["v0=", "sha256=", "v1,", "v1a,", "v1,AA== v1a,AA== ", "v="]), DIGESTS),
)
NAMES = sorted({name for headers in SIGNED for name in headers} | {"x-hub-signature", "x-gitlab-event-uuid"})


@settings(max_examples=400)
@given(headers=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES)), body=st.binary(), now=st.floats())
@example(headers=dict.fromkeys(NAMES, "9" * 5000), body=b"", now=0.0)
@example(headers=dict.fromkeys(NAMES, "\0"), body=b"\0", now=1e308)
@example(headers=dict.fromkeys(NAMES, "\ud800"), body=b"\xff", now=-1e308)
def test_unsigned_requests_raise_only_verification_error(headers: dict[str, str], body: bytes, now: float) -> None:
    for scheme in SCHEMES:
        with pytest.raises(VerificationError):
            scheme.verify(headers, body, now=now)


@given(
    body=st.binary(),
    secret=st.binary(min_size=1),
    now=st.integers(0, 10**12),
    others=st.dictionaries(ANYTHING, ANYTHING),
)
def test_signed_requests_are_accepted_with_any_other_headers(
    body: bytes, secret: bytes, now: int, others: dict[str, str]
) -> None:
    makers: tuple[Callable[..., Any], ...] = (GitHub, Stripe, Slack, lambda *keys: Hmac(*keys, header="X-Sig"))
    for make in makers:
        assert make(secret).verify(others | make(secret).sign(body, now=now), body, now=now) == ""


# -- nearly valid requests -----------------------------------------------------------------------------------------

SCRAPS = (
    "",
    "\0",
    "\n",
    "=",
    ",",
    " ",
    ".",
    "v1",
    "v1a,",
    "t=",
    "sha256=",
    "0",
    "9" * 5000,
    "-1",
    "ü",
    "\udcff",
    "\ud800",
    "٣",
)


def spoil(text: str, chance: random.Random) -> str:
    """Return ``text`` after one random mutation, which may leave it unchanged."""
    at, to = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
    begin, middle, end = text[:at], text[at:to], text[to:]
    ways: tuple[Callable[[], str], ...] = (
        lambda: begin + chance.choice(SCRAPS) + middle + end,
        lambda: begin + chance.choice(SCRAPS) + end,
        lambda: begin + chr(chance.randrange(0x11_0000)) + text[at + 1 :],
        lambda: begin + middle * chance.randrange(3) + end,
        lambda: begin,
        lambda: begin + middle.swapcase() + end,
        lambda: text + chance.choice((" ", ",", ", ")) + text,
    )
    return chance.choice(ways)()


def spoiled(headers: dict[str, str], chance: random.Random) -> dict[str, str]:
    changed = dict(headers)
    name = chance.choice(list(changed))
    match chance.randrange(8):
        case 0:
            del changed[name]
        case 1:
            changed[chance.choice(NAMES)] = spoil(changed[name], chance)
        case 2:
            return changed
        case _:
            changed[name] = spoil(changed[name], chance)
    return changed


def test_a_changed_request_is_rejected_or_equivalent() -> None:
    chance = random.Random(SEED)
    accepted = 0
    for number in range(INPUTS):
        scheme, signed = chance.choice(tuple(zip(SCHEMES, SIGNED, strict=True)))
        headers = spoiled(signed, chance)
        body = BODY if chance.randrange(4) else spoil(BODY.decode(), chance).encode("utf-8", "surrogatepass")
        now = NOW if chance.randrange(4) else chance.choice((0, -1e308, 1e308, float("nan"), NOW + 301, NOW - 301))
        label = f"seed {SEED}, input {number}: {scheme} with {headers!r}, {body!r}, now {now}"
        try:
            identity = scheme.verify(headers, body, now=now)
        except VerificationError:
            continue
        except Exception as error:
            raise AssertionError(label) from error
        accepted += 1
        signs_body, signs_time = not isinstance(scheme, GitLab), isinstance(scheme, StandardWebhooks | Stripe | Slack)
        assert body == BODY or not signs_body, label
        assert now == NOW or not signs_time, label
        assert identity in ("", "msg_1") or not isinstance(scheme, StandardWebhooks), label
    # Some requests stay valid. Without this check, a verifier that rejects everything would pass.
    assert accepted, f"seed {SEED}"
    print(f"LIFECYCLE_SEED={SEED}: {INPUTS} inputs, {accepted} of them accepted")
