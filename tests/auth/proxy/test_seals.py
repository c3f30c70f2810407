from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.proxy.seals import TokenSealer
from defserve.errors import UsageError

ONE, OTHER = b"s" * 32, b"t" * 32


def test_a_value_opens_for_its_purpose_and_within_its_time() -> None:
    now = 1000.0
    seals = TokenSealer([ONE], clock=lambda: now)
    text = seals.seal("code", {"a": [1]}, seconds=60)
    assert seals.open("code", text) == {"a": [1]} and TokenSealer([ONE], clock=lambda: now).open("code", text)
    assert seals.open("access", text) is None and TokenSealer([OTHER]).open("code", text) is None
    now += 60
    assert seals.open("code", text) is None
    assert seals.seal("code", 1) != seals.seal("code", 1)


def test_a_secret_that_was_replaced_still_opens_but_does_not_seal() -> None:
    old, both = TokenSealer([ONE]), TokenSealer([OTHER, ONE])
    assert both.open("x", old.seal("x", 1)) == 1 and old.open("x", both.seal("x", 1)) is None
    assert both.is_valid_mac("x", "text", old.compute_mac("x", "text")) and not both.is_valid_mac(
        "y", "text", old.compute_mac("x", "text")
    )


@given(st.binary(max_size=120), st.integers(0, 10_000))
def test_no_other_text_opens(noise: bytes, at: int) -> None:
    seals = TokenSealer([ONE])
    assert seals.open("x", noise.decode("latin-1")) is None
    text = seals.seal("x", 1)
    place = at % len(text)
    changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
    assert (
        seals.open("x", changed) is None and seals.open("x", text + "=") is None and seals.open("x", text + "A") is None
    )


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(UsageError, match="has 5 bytes"):
        TokenSealer([b"short"])
