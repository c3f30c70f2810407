from __future__ import annotations

from defserve.auth.oauth import (
    get_origin,
    is_token_resource_for,
    list_issuer_metadata_urls,
    list_resource_metadata_urls,
)
from tests.rows import for_each_row

A = "https://a.example:8443"


@for_each_row(
    "issuer, paths",
    [
        (A, ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        (f"{A}/", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        (
            f"{A}/x/y",
            [
                "/.well-known/oauth-authorization-server/x/y",
                "/.well-known/openid-configuration/x/y",
                "/x/y/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_an_issuer_is_looked_for_in_the_order_of_mcp(issuer: str, paths: list[str]) -> None:
    assert list(list_issuer_metadata_urls(issuer)) == [f"{A}{path}" for path in paths]


def test_a_server_is_looked_for_by_its_path_and_then_at_the_root() -> None:
    root = f"{A}/.well-known/oauth-protected-resource"
    assert list_resource_metadata_urls(f"{A}/mcp/?x=1") == (f"{root}/mcp", root)
    assert list_resource_metadata_urls(A) == (root,)
    assert get_origin(f"{A}/mcp") == A


@for_each_row(
    ("resource", "server", "is_covered"),
    [
        ("https://a.example/mcp", "https://a.example/mcp", True),
        ("https://a.example/mcp/", "https://a.example/mcp", True),
        ("https://a.example", "https://a.example/mcp", True),
        ("https://a.example/", "https://a.example/mcp/deep", True),
        ("https://A.example/mcp", "https://a.example/mcp", True),
        ("https://a.example/mc", "https://a.example/mcp", False),
        ("https://a.example/mcp/deep", "https://a.example/mcp", False),
        ("https://b.example/mcp", "https://a.example/mcp", False),
        ("https://a.example.evil/mcp", "https://a.example/mcp", False),
        ("https://a.example:444/mcp", "https://a.example/mcp", False),
        ("http://a.example/mcp", "https://a.example/mcp", False),
        ("https://a.example/mcp#x", "https://a.example/mcp", False),
        ("https://a.example/mcp?x=1", "https://a.example/mcp", False),
        ("https://u@a.example/mcp", "https://a.example/mcp", False),
        ("https://[/mcp", "https://a.example/mcp", False),
        ("", "https://a.example/mcp", False),
    ],
)
def test_which_tokens_are_for_a_server(resource: str, server: str, is_covered: bool) -> None:
    assert is_token_resource_for(resource, server) is is_covered
