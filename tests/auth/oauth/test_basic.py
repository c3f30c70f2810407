from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.oauth import basic, client_basic, read_client_basic
from tests.rows import for_each_row

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def test_a_name_and_a_password_are_written_as_they_are() -> None:
    assert basic("Aladdin", "open sesame") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


@given(TEXTS, TEXTS)
def test_a_client_is_read_as_it_was_written(id: str, secret: str) -> None:
    assert read_client_basic(client_basic(id, secret)) == (id, secret)


def test_a_space_is_read_by_those_who_know_no_plus_sign() -> None:
    assert client_basic("a", "b c") == basic("a", "b%20c")
    assert read_client_basic(basic("a", "b+c")) == ("a", "b c")


@for_each_row("header", ["", "Basic", "Basic !", "Bearer YTpi", "Basic YWI=", "Basic /w=="])
def test_any_other_header_is_refused(header: str) -> None:
    with pytest.raises(ValueError):
        read_client_basic(header)
