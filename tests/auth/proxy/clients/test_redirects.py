from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.proxy.clients import CLIENT_SCHEMES, RedirectRule, describe_redirect, matches_redirect
from defserve.errors import UsageError
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
        "com.example.my-app://oauth",
        "Cursor://anysphere.cursor-mcp/oauth/callback",
        "vscode-insiders://vscode.github-authentication/did-authenticate",
        "claude://oauth/callback",
        "windsurf://codeium.windsurf/oauth",
    ],
)
def test_a_client_may_register_these(uri: str) -> None:
    assert RedirectRule().is_allowed_redirect(uri) and matches_redirect(uri, uri) and describe_redirect(uri)


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
        "microsoft-edge:https://evil.example/",
        "microsoft-edge:///?url=https://evil.example",
        "googlechrome://evil.example/",
        "googlechromes://evil.example/",
        "firefox://open-url?url=https://evil.example",
        "x-safari-https://evil.example/",
        "brave://open-url?url=https://evil.example",
        "myapp://oauth",
        "ms-appinstaller:?source=https://evil.example",
        "search-ms:query=x",
        "cursor:https://evil.example/",
        "vscode:x",
        "com.example.app:https://evil.example/",
        "com.example.app:",
        "com.example.app:/",
        "cursor:/",
        ".app:/oauth",
        "app.:/oauth",
        "com..app:/oauth",
        "https://app.example/" + "x" * 2000,
        "https://ä.example/cb",
    ],
)
def test_a_client_may_not_register_these(uri: str) -> None:
    assert not RedirectRule().is_allowed_redirect(uri)


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
    assert matches_redirect(registered, asked) is is_same


@given(st.text(max_size=60), st.text(max_size=60))
def test_texts_match_only_themselves_or_another_port_of_this_machine(registered: str, asked: str) -> None:
    assert matches_redirect(registered, asked) is (registered == asked) or asked.startswith("http://")


@given(
    st.from_regex(r"[a-z][a-z0-9+-]{0,20}", fullmatch=True), st.sampled_from(["://x/cb", ":/cb", ":x", ":https://x"])
)
def test_a_scheme_without_a_dot_is_taken_only_from_the_table(scheme: str, rest: str) -> None:
    is_known = scheme in CLIENT_SCHEMES and rest.startswith(":/")
    is_web = scheme == "https" and rest.startswith("://")
    assert RedirectRule().is_allowed_redirect(scheme + rest) is (is_known or is_web)


def test_an_operator_may_name_the_scheme_of_another_application() -> None:
    rule = RedirectRule(["myapp"])
    assert rule.is_allowed_redirect("myapp://oauth") and rule.is_allowed_redirect("cursor://x/cb")
    assert not rule.is_allowed_redirect("otherapp://oauth") and not rule.is_allowed_redirect(
        "myapp:https://evil.example/"
    )


@for_each_row("scheme", ["microsoft-edge", "googlechromes", "javascript", "https", "My App", "myapp:", "myapp://", ""])
def test_an_operator_cannot_name_a_scheme_that_is_no_applications_own(scheme: str) -> None:
    with pytest.raises(UsageError, match="redirect_schemes"):
        RedirectRule([scheme])
