from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.bearer_tokens import MALFORMED_TOKEN, MAX_TOKEN_LENGTH, MalformedToken, extract_bearer_token
from defserve.auth.oauth import STATUS, format_bearer_challenge, quote_header_value
from tests.rows import for_each_row


@for_each_row(
    ("values", "found"),
    [
        ([], None),
        ([b""], None),
        ([b"Basic YTpi"], None),
        ([b"Bearerabc"], None),
        ([b"DPoP abc"], None),
        ([b"Bearer abc.def-_~+/=="], "abc.def-_~+/=="),
        ([b"bearer abc"], "abc"),
        ([b"BEARER abc"], "abc"),
        ([b" Bearer  abc "], "abc"),
        ([b"Bearer"], MALFORMED_TOKEN),
        ([b"Bearer "], MALFORMED_TOKEN),
        ([b"Bearer a b"], MALFORMED_TOKEN),
        ([b"Bearer a,b"], MALFORMED_TOKEN),
        ([b'Bearer token="a"'], MALFORMED_TOKEN),
        ([b"Bearer =="], MALFORMED_TOKEN),
        ([b"Bearer a=b"], MALFORMED_TOKEN),
        ([b"Bearer a\n"], MALFORMED_TOKEN),
        ([b"Bearer \xc3\xa9"], MALFORMED_TOKEN),
        ([b"Bearer a\x00"], MALFORMED_TOKEN),
        ([b"Bearer " + b"a" * MAX_TOKEN_LENGTH], "a" * MAX_TOKEN_LENGTH),
        ([b"Bearer " + b"a" * (MAX_TOKEN_LENGTH + 1)], MALFORMED_TOKEN),
        ([b"Bearer a", b"Bearer a"], MALFORMED_TOKEN),
        ([b"Basic YTpi", b"Bearer a"], MALFORMED_TOKEN),
    ],
)
def test_a_token_is_read_from_the_authorization_header(values: list[bytes], found: str | MalformedToken | None) -> None:
    assert extract_bearer_token(values) == found


@given(st.lists(st.binary(max_size=40), max_size=2))
def test_any_header_is_a_token_or_none_or_malformed(values: list[bytes]) -> None:
    found = extract_bearer_token(values)
    assert found is None or found is MALFORMED_TOKEN or found.isascii()


def test_a_caller_without_a_token_is_told_no_error() -> None:
    said = format_bearer_challenge(scopes=["read", "write"], metadata_url="https://h.example/.well-known/x")
    assert said == 'Bearer scope="read write", resource_metadata="https://h.example/.well-known/x"'
    assert STATUS[None] == 401


def test_a_caller_with_a_bad_token_is_told_so() -> None:
    assert (
        format_bearer_challenge("invalid_token", description="expired")
        == 'Bearer error="invalid_token", error_description="expired"'
    )
    assert STATUS["invalid_token"] == 401


def test_a_caller_without_the_scope_is_told_all_it_needs() -> None:
    said = format_bearer_challenge("insufficient_scope", scopes=["read"], metadata_url="https://h.example/m")
    assert said == 'Bearer error="insufficient_scope", scope="read", resource_metadata="https://h.example/m"'
    assert STATUS["insufficient_scope"] == 403


def test_a_challenge_with_nothing_to_say_is_the_scheme() -> None:
    assert format_bearer_challenge() == "Bearer"


@for_each_row(
    ("text", "safe"),
    [
        ("plain", '"plain"'),
        ('a"b', r'"a\"b"'),
        ("a\\", r'"a\\"'),
        ("a\r\nSet-Cookie: x", '"a??Set-Cookie: x"'),
        ("é\u2028", '"??"'),
        ("\x7f", '"?"'),
    ],
)
def test_a_value_is_quoted(text: str, safe: str) -> None:
    assert quote_header_value(text) == safe


@given(st.text())
def test_no_text_escapes_its_quotes(text: str) -> None:
    assert re.fullmatch(r'"(?:[ !#-\[\]-~]|\\["\\])*"', quote_header_value(text))
