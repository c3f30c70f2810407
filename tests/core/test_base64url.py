from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.core import json_values


@given(st.binary(max_size=40))
def test_bytes_come_back_and_their_text_is_safe_in_urls(raw: bytes) -> None:
    text = json_values.encode_base64url(raw)
    assert json_values.decode_base64url(text) == raw
    assert all(each.isascii() and (each.isalnum() or each in "-_") for each in text)


@given(st.text(alphabet="AQgw-_+/=. \né", max_size=8))
def test_bytes_have_one_text_and_every_other_one_is_refused(text: str) -> None:
    try:
        raw = json_values.decode_base64url(text)
    except ValueError:
        return
    assert json_values.encode_base64url(raw) == text


def test_padding_trailing_bits_and_foreign_characters_are_refused() -> None:
    assert json_values.decode_base64url("AQ") == b"\x01"
    for text in ("AQ==", "AR", "A Q", "A", "+Q", "é"):
        with pytest.raises(ValueError):
            json_values.decode_base64url(text)
