from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.oauth import decode_client_basic_auth, encode_basic_auth, encode_client_basic_auth
from tests.rows import for_each_row

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def test_a_name_and_a_password_are_written_as_they_are() -> None:
    assert encode_basic_auth("Aladdin", "open sesame") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


@given(TEXTS, TEXTS)
def test_a_client_is_read_as_it_was_written(id: str, secret: str) -> None:
    assert decode_client_basic_auth(encode_client_basic_auth(id, secret)) == (id, secret)


def test_a_space_is_read_by_those_who_know_no_plus_sign() -> None:
    assert encode_client_basic_auth("a", "b c") == encode_basic_auth("a", "b%20c")
    assert decode_client_basic_auth(encode_basic_auth("a", "b+c")) == ("a", "b c")


@for_each_row("header", ["", "Basic", "Basic !", "Bearer YTpi", "Basic YWI=", "Basic /w=="])
def test_any_other_header_is_refused(header: str) -> None:
    with pytest.raises(ValueError):
        decode_client_basic_auth(header)
