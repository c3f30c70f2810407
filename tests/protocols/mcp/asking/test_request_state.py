from __future__ import annotations

import asyncio
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import InvalidParams, LimitExceeded
from defserve.protocols.mcp.asking.round_trips import MAX_STATE_LENGTH, InvalidState, Sealer, digest_binding
from defserve.stores.store import MemoryNonceStore
from tests.rows import for_each_row

SECRET = b"0123456789abcdef"
BOUND = digest_binding("alice", "tools/call", "deploy", {"env": "prod"})
BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(sealer: Sealer, text: str, bound: bytes = BOUND) -> Any:
    return asyncio.run(sealer.open(text, binding=bound))


def refuses(sealer: Sealer, text: str, bound: bytes = BOUND) -> bool:
    try:
        opened(sealer, text, bound)
    except InvalidState as error:
        return str(error) == "Invalid or expired requestState" and error.code == -32602
    return False


@given(json_values)
def test_what_is_sealed_is_opened(payload: Any) -> None:
    sealer = Sealer(SECRET)
    assert opened(sealer, sealer.seal(payload, binding=BOUND)) == payload


def test_a_state_is_versioned_url_safe_and_hides_its_payload() -> None:
    text = Sealer(SECRET).seal({"answer": "AAAAAAAAAAAAAAAA"}, binding=BOUND)
    assert text.startswith("v1.") and set(text[3:]) <= set(BASE64)
    assert text != Sealer(SECRET).seal({"answer": "AAAAAAAAAAAAAAAA"}, binding=BOUND)
    assert "QUFBQU" not in text


def test_invalid_state_is_an_error_of_the_peers_params() -> None:
    assert issubclass(InvalidState, InvalidParams)


def test_a_state_changed_at_any_character_is_refused() -> None:
    sealer = Sealer(SECRET)
    text = sealer.seal({"answer": 1}, binding=BOUND)
    for at, char in enumerate(text):
        for other in (BASE64[(BASE64.find(char) + 1) % 64], BASE64[(BASE64.find(char) + 32) % 64], "=", "\n", ""):
            assert refuses(sealer, text[:at] + other + text[at + 1 :]), at
    assert opened(sealer, text) == {"answer": 1}


@for_each_row("payload", [1, 12, 123, 1234])
def test_only_the_canonical_encoding_is_accepted(payload: int) -> None:
    sealer = Sealer(SECRET)
    text = sealer.seal(payload, binding=BOUND)
    for variant in (text[:-1] + BASE64[BASE64.find(text[-1]) ^ 1], text + "=", text + "==", text + "A", text + " "):
        assert refuses(sealer, variant)
    standard = "v1." + text[3:].translate({ord("-"): "+", ord("_"): "/"})
    assert standard == text or refuses(sealer, standard)


@given(st.text() | st.text(BASE64).map("v1.".__add__) | st.text(BASE64, min_size=76, max_size=200).map("v1.".__add__))
def test_any_text_is_refused_with_the_one_error(text: str) -> None:
    assert refuses(Sealer(SECRET), text)


def test_a_state_that_is_too_long_is_refused() -> None:
    assert refuses(Sealer(SECRET), "v1." + "A" * MAX_STATE_LENGTH)


def test_a_payload_that_could_not_be_opened_is_not_sealed() -> None:
    sealer = Sealer(SECRET)
    fits = "x" * 49_000
    assert opened(sealer, sealer.seal(fits, binding=BOUND)) == fits
    with pytest.raises(LimitExceeded):
        sealer.seal("x" * 50_000, binding=BOUND)


def test_a_state_expires() -> None:
    clock = Clock()
    sealer = Sealer(SECRET, ttl=600, clock=clock)
    early, late = (sealer.seal("answer", binding=BOUND) for _ in range(2))
    clock.now += 599.5
    assert opened(sealer, early) == "answer"
    clock.now += 0.5
    assert refuses(sealer, late)


def test_a_state_from_a_clock_a_little_ahead_is_opened_but_not_one_from_the_future() -> None:
    here, ahead = Clock(), Clock()
    ahead.now += 59
    sealer, other = Sealer(SECRET, clock=here), Sealer(SECRET, clock=ahead)
    assert opened(sealer, other.seal(1, binding=BOUND)) == 1
    ahead.now += 2
    assert refuses(sealer, other.seal(1, binding=BOUND))


def test_a_state_is_spent_by_opening_it() -> None:
    sealer = Sealer(SECRET)
    text = sealer.seal("answer", binding=BOUND)
    assert opened(sealer, text) == "answer"
    assert refuses(sealer, text)


def test_a_spent_state_stays_spent_when_the_clock_is_set_back() -> None:
    wall, monotonic = Clock(), Clock()
    sealer = Sealer(SECRET, ttl=600, clock=wall, nonces=MemoryNonceStore(clock=monotonic))
    text = sealer.seal("answer", binding=BOUND)
    assert opened(sealer, text) == "answer"
    wall.now += 600 - 30
    monotonic.now += 600
    assert refuses(sealer, text)


def test_a_refused_attempt_does_not_spend_a_state() -> None:
    sealer = Sealer(SECRET)
    text = sealer.seal("answer", binding=BOUND)
    assert refuses(sealer, text, digest_binding("mallory", "tools/call", "deploy", {"env": "prod"}))
    assert opened(sealer, text) == "answer"


def test_sealers_that_share_nonces_open_a_state_once_between_them() -> None:
    nonces = MemoryNonceStore()
    one, two = Sealer(SECRET, nonces=nonces), Sealer(SECRET, nonces=nonces)
    text = one.seal("answer", binding=BOUND)
    assert opened(two, text) == "answer"
    assert refuses(one, text)


@for_each_row(
    "other",
    [
        ("bob", "tools/call", "deploy", {"env": "prod"}),
        ("alice", "prompts/get", "deploy", {"env": "prod"}),
        ("alice", "tools/call", "destroy", {"env": "prod"}),
        ("alice", "tools/call", "deploy", {"env": "test"}),
        ("alice", "tools/call", "deploy", None),
    ],
)
def test_a_state_is_refused_for_another_request(other: tuple[str, str, str, Any]) -> None:
    sealer = Sealer(SECRET)
    assert refuses(sealer, sealer.seal("answer", binding=BOUND), digest_binding(*other))


def test_a_second_sealer_with_the_same_secret_opens_it() -> None:
    assert opened(Sealer(SECRET), Sealer(SECRET).seal([1], binding=BOUND)) == [1]


def test_a_sealer_with_another_secret_refuses_it() -> None:
    assert refuses(Sealer(SECRET[::-1]), Sealer(SECRET).seal(1, binding=BOUND))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Sealer(b"short")


def test_the_binding_ignores_the_order_of_members_at_any_depth() -> None:
    assert digest_binding("p", "m", "t", {"a": 1, "b": [{"c": 2, "d": 3}]}) == digest_binding(
        "p", "m", "t", {"b": [{"d": 3, "c": 2}], "a": 1}
    )
    assert digest_binding("p", "m", "t", [1, 2]) != digest_binding("p", "m", "t", [2, 1])


fields = st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3), st.text("ab", max_size=3))


@given(fields, fields)
def test_no_two_requests_share_a_binding(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (digest_binding(*one, {}) == digest_binding(*two, {})) == (one == two)


def test_any_principal_can_be_bound() -> None:
    assert len(digest_binding("\ud800", "", "é", None)) == 32
