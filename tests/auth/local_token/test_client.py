"""Which addresses are shown a local token: those it was made for, and no others."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from defserve.auth.local_token import find_local_server_url, publish_local_key, resolve_local_key

ALL = [("127.0.0.1", 8000), ("::1", 8000), ("127.0.0.2", 8000), ("127.0.0.1", 80), ("127.0.0.1", 443)]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:8000/mcp"),
        ("https://127.0.0.1:8000/a?b=c", "https://127.0.0.1:8000/a?b=c"),
        ("ws://127.0.0.1:8000/mcp", "ws://127.0.0.1:8000/mcp"),
        ("wss://[::1]:8000/mcp", "wss://[::1]:8000/mcp"),
        ("http://[0:0::1]:8000/mcp", "http://[::1]:8000/mcp"),
        ("http://[::ffff:127.0.0.1]:8000/mcp", "http://127.0.0.1:8000/mcp"),
        ("http://127.0.0.2:8000/mcp", "http://127.0.0.2:8000/mcp"),
        ("http://127.0.0.1/mcp", "http://127.0.0.1:80/mcp"),
        ("https://127.0.0.1", "https://127.0.0.1:443"),
    ],
)
def test_a_loopback_address_is_shown_its_key(url: str, meant: str):
    with publish_local_key(ALL) as key:
        if "::ffff" in url and find_local_server_url(url) is None:
            return  # older versions of Python do not take it for a loopback address
        assert find_local_server_url(url) == (meant, key)
    assert find_local_server_url(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8001/mcp",
        "http://127.0.0.3:8000/mcp",
        "http://example.com:8000/mcp",
        "http://127.0.0.1.example.com:8000/mcp",
        "http://localhost.example.com:8000/mcp",
        "http://127.0.0.1:8000@example.com/mcp",
        "http://user@127.0.0.1:8000/mcp",
        "http://10.0.0.1:8000/mcp",
        "http://0.0.0.0:8000/mcp",
        "http://127.1:8000/mcp",
        "http://2130706433:8000/mcp",
        "ftp://127.0.0.1:8000/mcp",
        "mcpx+ws://127.0.0.1:8000/ws",
        "unix:/127.0.0.1_8000",
        "http://127.0.0.1:x/mcp",
        "http://[::1/mcp",
        "127.0.0.1:8000",
        "",
    ],
)
def test_no_other_address_is_shown_a_key(url: str):
    with publish_local_key(ALL):
        assert find_local_server_url(url) is None
        assert resolve_local_key(url, None, {}) == (url, None)


def test_a_name_becomes_the_address_for_which_the_key_was_made(monkeypatch: pytest.MonkeyPatch):
    def resolved(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "localhost"
        return [(0, 0, 0, "", (address, port)) for address in ("203.0.113.7", "::1", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    # Somebody else may listen at [::1].
    with publish_local_key([("127.0.0.1", 8000)]) as key:
        assert find_local_server_url("http://localhost:8000/mcp") == ("http://127.0.0.1:8000/mcp", key)
    with publish_local_key([("203.0.113.7", 8000)]):
        assert find_local_server_url("http://localhost:8000/mcp") is None


def test_given_credentials_go_before_the_key():
    url = "http://127.0.0.1:8000/mcp"
    with publish_local_key(ALL) as key:
        assert resolve_local_key(url, None, {"x": "y"}) == (url, key)
        assert resolve_local_key(url, "mine", {}) == (url, "mine")
        assert resolve_local_key(url, None, {"Authorization": "Basic x"}) == (url, None)


def test_the_key_of_another_user_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    uid = os.getuid()
    with publish_local_key(ALL):
        monkeypatch.setattr("defserve.auth.local_token.os.getuid", lambda: uid + 1)
        assert find_local_server_url("http://127.0.0.1:8000/mcp") is None
        monkeypatch.undo()
