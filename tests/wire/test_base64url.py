from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.wire import base64url


@given(st.binary(max_size=40))
def test_bytes_come_back_and_their_text_is_safe_in_urls(raw: bytes) -> None:
    text = base64url.encode(raw)
    assert base64url.decode(text) == raw
    assert all(each.isascii() and (each.isalnum() or each in "-_") for each in text)


@given(st.text(alphabet="AQgw-_+/=. \né", max_size=8))
def test_bytes_have_one_text_and_every_other_one_is_refused(text: str) -> None:
    try:
        raw = base64url.decode(text)
    except ValueError:
        return
    assert base64url.encode(raw) == text


def test_padding_trailing_bits_and_foreign_characters_are_refused() -> None:
    assert base64url.decode("AQ") == b"\x01"
    for text in ("AQ==", "AR", "A Q", "A", "+Q", "é"):
        with pytest.raises(ValueError):
            base64url.decode(text)
