from __future__ import annotations

from typing import Any

import pytest

from defserve.auth.auth_options import ProtectedResource
from defserve.auth.oauth import list_resource_metadata_paths
from defserve.errors import UsageError
from tests.rows import for_each_row

URL = "https://tools.example/mcp"
SERVERS = ("https://login.example",)


@for_each_row(
    ("path", "places"),
    [
        ("/mcp", ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource")),
        ("/mcp/", ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource")),
        ("/a/mcp", ("/.well-known/oauth-protected-resource/a/mcp", "/.well-known/oauth-protected-resource")),
        ("/", ("/.well-known/oauth-protected-resource",)),
        ("", ("/.well-known/oauth-protected-resource",)),
    ],
)
def test_the_metadata_of_an_endpoint_is_at_its_well_known_paths(path: str, places: tuple[str, ...]) -> None:
    assert list_resource_metadata_paths(path) == places


def test_the_document_says_who_issues_tokens() -> None:
    assert ProtectedResource(URL, SERVERS, ("read",)).document() == {
        "resource": URL,
        "authorization_servers": ["https://login.example"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["read"],
    }


def test_the_document_does_not_mention_scopes_there_are_not() -> None:
    assert "scopes_supported" not in ProtectedResource(URL, SERVERS).document()


@for_each_row(
    ("url", "metadata"),
    [
        (URL, "https://tools.example/.well-known/oauth-protected-resource/mcp"),
        ("https://tools.example", "https://tools.example/.well-known/oauth-protected-resource"),
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:8000/.well-known/oauth-protected-resource/mcp"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/.well-known/oauth-protected-resource/mcp"),
        ("http://localhost/mcp", "http://localhost/.well-known/oauth-protected-resource/mcp"),
    ],
)
def test_the_metadata_url_is_on_the_resource_s_host(url: str, metadata: str) -> None:
    resource = ProtectedResource(url, SERVERS)
    assert resource.metadata_url == metadata
    assert metadata.endswith(resource.paths[0])


@for_each_row(
    ("fields", "problem"),
    [
        ({"url": "https://tools.example/mcp/"}, "ends in a slash"),
        ({"url": "https://tools.example/mcp#x"}, "fragment"),
        ({"url": "https://tools.example/mcp?x=1"}, "query"),
        ({"url": "http://tools.example/mcp"}, "only https"),
        ({"url": "http://localhost.evil.example/mcp"}, "only https"),
        ({"url": "ftp://tools.example/mcp"}, "only https"),
        ({"url": "/mcp"}, "absolute"),
        ({"url": "https://"}, "absolute"),
        ({"url": "https://exämple.example/mcp"}, "ASCII"),
        ({"url": "https://tools.example/m cp"}, "ASCII"),
        ({"url": "https://tools.example/\r\nX: y"}, "ASCII"),
        ({"url": "https://tools.example:x/mcp"}, "cannot be"),
        ({"url": "https://[tools/mcp"}, "cannot be"),
        ({"url": "https://a:b@tools.example/mcp"}, "user name"),
        ({"authorization_servers": ()}, "no authorization servers"),
        ({"authorization_servers": ("http://login.example",)}, "only https"),
        ({"scopes_supported": ("offline_access",)}, "offline_access"),
        ({"scopes_supported": ('a"b',)}, "is not a scope"),
    ],
)
def test_a_resource_that_clients_cannot_use_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ProtectedResource(**{"url": URL, "authorization_servers": SERVERS, **fields})
