from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.proxy.clients.redirects import is_redirect, matches, target
from tests.rows import for_each_row


@for_each_row(
    "uri",
    [
        "https://app.example/cb",
        "https://app.example:8443/cb?x=1",
        "http://127.0.0.1/cb",
        "http://127.0.0.1:3333/cb",
        "http://[::1]:3333/cb",
        "http://localhost/cb",
        "cursor://anysphere.cursor-mcp/oauth/callback",
        "vscode://vscode.github-authentication/did-authenticate",
        "com.example.app:/oauth",
    ],
)
def test_a_client_may_register_these(uri: str) -> None:
    assert is_redirect(uri) and matches(uri, uri) and target(uri)


@for_each_row(
    "uri",
    [
        "",
        "/cb",
        "app.example/cb",
        "http://app.example/cb",
        "http://127.0.0.1.evil.example/cb",
        "http://localhost.evil.example/cb",
        "https://user@app.example/cb",
        "https://app.example\\@evil.example/cb",
        "https://app.example/cb#fragment",
        "https://app.example/cb\r\nx: y",
        "https://app.example/a b",
        "https:///cb",
        "https://app.example./cb",
        "https://app.example:99999/cb",
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "blob:https://app.example/x",
        "view-source:https://app.example",
        "intent://x",
        "https://app.example/" + "x" * 2000,
        "https://ä.example/cb",
    ],
)
def test_a_client_may_not_register_these(uri: str) -> None:
    assert not is_redirect(uri)


@for_each_row(
    "registered, asked, is_same",
    [
        ("http://127.0.0.1/cb", "http://127.0.0.1:5555/cb", True),
        ("http://127.0.0.1:1/cb", "http://127.0.0.1:5555/cb", True),
        ("http://[::1]/cb", "http://[::1]:5555/cb", True),
        ("http://localhost:1/cb", "http://localhost:2/cb", True),
        ("http://127.0.0.1/cb", "http://localhost/cb", False),
        ("http://127.0.0.1/cb", "http://[::1]/cb", False),
        ("http://127.0.0.1/cb", "https://127.0.0.1/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1/cb/", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1/cb?x", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1/cb#x", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:5@evil.example/cb", False),
        ("https://app.example/cb", "https://app.example:444/cb", False),
        ("https://app.example/cb", "https://app.example/CB", False),
        ("https://127.0.0.1/cb", "https://127.0.0.1:5/cb", False),
        ("cursor://a/cb", "cursor://a:5/cb", False),
    ],
)
def test_a_redirect_matches_exactly_except_for_a_port_on_this_machine(
    registered: str, asked: str, is_same: bool
) -> None:
    assert matches(registered, asked) is is_same


@given(st.text(max_size=60), st.text(max_size=60))
def test_texts_match_only_themselves_or_another_port_of_this_machine(registered: str, asked: str) -> None:
    assert matches(registered, asked) is (registered == asked) or asked.startswith("http://")
