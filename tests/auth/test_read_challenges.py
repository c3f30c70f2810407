"""What `WWW-Authenticate` says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.oauth import NO_CHALLENGE, format_bearer_challenge, parse_challenges, parse_oauth_challenge
from tests.rows import for_each_row

VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)


@for_each_row(
    ("header", "read"),
    [
        ("", []),
        ("Bearer", [("bearer", {})]),
        ('Bearer realm="a, b", scope="x y"', [("bearer", {"realm": "a, b", "scope": "x y"})]),
        ('bearer  error = invalid_token ,scope="a"', [("bearer", {"error": "invalid_token", "scope": "a"})]),
        ('Basic realm="x", Bearer scope="a"', [("basic", {"realm": "x"}), ("bearer", {"scope": "a"})]),
        ('Negotiate, DPoP algs="ES256"', [("negotiate", {}), ("dpop", {"algs": "ES256"})]),
        ("Negotiate YIIB==, Bearer", [("negotiate", {}), ("bearer", {})]),
        (r'Bearer realm="say \"hi\" \\"', [("bearer", {"realm": r'say "hi" \ '.strip()})]),
        ('Bearer scope="first", scope="second"', [("bearer", {"scope": "first"})]),
        ('Bearer realm="never ends', [("bearer", {}), ("realm", {})]),
        ('realm="no scheme"', []),
    ],
)
def test_a_header_is_read_as_the_specification_says(header: str, read: list[tuple[str, dict[str, str]]]) -> None:
    assert [(each.scheme, dict(each.parameters)) for each in parse_challenges(header)] == read


def test_the_challenge_that_asks_for_a_token_is_found_among_others() -> None:
    assert parse_oauth_challenge("Basic realm=x") is NO_CHALLENGE
    both = parse_oauth_challenge('Bearer realm="x", DPoP error="use_dpop_nonce"')
    assert (both.scheme, both.error) == ("dpop", "use_dpop_nonce")
    assert parse_oauth_challenge('Bearer scope="b a b"').scopes == ("b", "a")


@given(VALUES, st.lists(st.text("abc:.", min_size=1, max_size=5), max_size=4))
def test_what_a_server_of_ours_writes_is_read_back(description: str, scopes: list[str]) -> None:
    read = parse_oauth_challenge(
        format_bearer_challenge("insufficient_scope", description=description, scopes=scopes, metadata_url="u")
    )
    assert read.parameters.get("error_description", "") == description
    assert read.scopes == tuple(dict.fromkeys(scopes)) and read.error == "insufficient_scope"


@given(st.text(st.sampled_from('aB =",\\;\t') | st.characters(max_codepoint=0x2FF), max_size=200))
def test_any_header_is_read_without_an_error(header: str) -> None:
    for each in parse_challenges(header):
        assert each.scheme == each.scheme.lower() and all(name == name.lower() for name in each.parameters)
