"""A settings file is replaced as a whole, keeps its permissions, and is left alone when anything is odd."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from defserve.client.known_clients import KNOWN_CLIENTS, LaunchCommand, find_known_client
from defserve.errors import UsageError
from defserve.tooling import client_settings
from tests.rows import for_each_row

KEYS = ("mcpServers", "calc")
posix = pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_private_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "mcp.json"
    assert client_settings.set_entry(path, "json", KEYS, {"command": "x"}).write() is None
    assert client_settings.read_settings(path, "json") == {"mcpServers": {"calc": {"command": "x"}}}
    assert os.name != "posix" or mode(path) == 0o600


@posix
def test_a_file_keeps_its_permissions_and_so_does_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{} // mine\n")
    path.chmod(0o640)
    backup = client_settings.set_entry(path, "json", KEYS, 1).write()
    assert backup == tmp_path / "mcp.json.bak"
    assert (backup.read_text(), mode(backup), mode(path)) == ("{} // mine\n", 0o640, 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mcp.json", "mcp.json.bak"]


@posix
def test_a_link_is_kept_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}")
    link.symlink_to(real)
    client_settings.set_entry(link, "json", KEYS, 1).write()
    assert link.is_symlink()
    assert client_settings.read_settings(real, "json") == {"mcpServers": {"calc": 1}}


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    edit = client_settings.set_entry(path, "json", KEYS, 1)
    path.write_text('{"theirs": 1}')
    with pytest.raises(UsageError, match="has changed in the meantime"):
        edit.write()
    assert path.read_text() == '{"theirs": 1}'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1', "is broken and was left alone"),
        (b'{"mcpServers": []}', "mcpServers is not an object"),
        (b"\xff\xfe{\x00}\x00", "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_edited_is_left_alone(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        client_settings.set_entry(path, "json", KEYS, 1)
    assert path.read_bytes() == content


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot write"):
        client_settings.set_entry(tmp_path / "mcp.json", "json", KEYS, 1).write()


def test_a_diff_shows_what_would_change(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"a": 1}')
    assert client_settings.set_entry(path, "json", ("b",), 2).diff().splitlines()[2:] == [
        "@@ -1 +1 @@",
        '-{"a": 1}',
        "\\ No newline at end of file",
        '+{"a": 1, "b": 2}',
        "\\ No newline at end of file",
    ]


# -- the table -------------------------------------------------------------------------------------------

STARTED = LaunchCommand("/bin/x", ("-a",), {"K": "v"})
REMOTE = LaunchCommand(url="https://example.com/mcp", headers={"A": "b"})
PLAIN = {"command": "/bin/x", "args": ["-a"], "env": {"K": "v"}}
AT = {"url": "https://example.com/mcp", "headers": {"A": "b"}}


@for_each_row(
    ("name", "started", "remote"),
    [
        ("claude-code", {"type": "stdio", **PLAIN}, {"type": "http", **AT}),
        ("vscode", {"type": "stdio", **PLAIN}, {"type": "http", **AT}),
        ("mcp-json", {"type": "stdio", **PLAIN}, {"type": "http", **AT}),
        ("cursor", PLAIN, AT),
        ("zed", PLAIN, AT),
        ("gemini", PLAIN, {**AT, "type": "http"}),
        ("windsurf", PLAIN, {"serverUrl": AT["url"], "headers": AT["headers"]}),
        ("codex", PLAIN, {"url": AT["url"], "http_headers": AT["headers"]}),
    ],
)
def test_each_client_is_spoken_to_in_its_words(name: str, started: object, remote: object) -> None:
    assert find_known_client(name).entry(STARTED) == started
    assert find_known_client(name).entry(REMOTE) == remote


def test_a_websocket_is_called_ws() -> None:
    assert find_known_client("claude-code").entry(LaunchCommand(url="wss://x/mcp"))["type"] == "ws"


def test_claude_desktop_only_starts_commands() -> None:
    assert find_known_client("claude-desktop").entry(STARTED) == PLAIN
    with pytest.raises(UsageError, match="only starts commands"):
        find_known_client("claude-desktop").entry(REMOTE)


@pytest.mark.parametrize(
    ("platform", "name", "scope", "path"),
    [
        ("linux", "claude-desktop", "user", "H/.config/Claude/claude_desktop_config.json"),
        ("darwin", "claude-desktop", "user", "H/Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", "claude-desktop", "user", "R/Claude/claude_desktop_config.json"),
        ("linux", "claude-code", "user", "H/.claude.json"),
        ("linux", "claude-code", "project", "P/.mcp.json"),
        ("linux", "vscode", None, "P/.vscode/mcp.json"),
        ("linux", "vscode", "user", "H/.config/Code/User/mcp.json"),
        ("darwin", "vscode", "user", "H/Library/Application Support/Code/User/mcp.json"),
        ("linux", "cursor", "user", "H/.cursor/mcp.json"),
        ("linux", "cursor", "project", "P/.cursor/mcp.json"),
        ("linux", "windsurf", "user", "H/.codeium/windsurf/mcp_config.json"),
        ("linux", "zed", "user", "H/.config/zed/settings.json"),
        ("darwin", "zed", "user", "H/.config/zed/settings.json"),
        ("win32", "zed", "user", "R/Zed/settings.json"),
        ("linux", "zed", "project", "P/.zed/settings.json"),
        ("linux", "gemini", "user", "H/.gemini/settings.json"),
        ("linux", "gemini", "project", "P/.gemini/settings.json"),
        ("linux", "codex", "user", "H/.codex/config.toml"),
        ("linux", "mcp-json", None, "P/.mcp.json"),
    ],
)
def test_each_client_has_its_place(
    platform: str, name: str, scope: object, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/H")
    monkeypatch.setenv("USERPROFILE", "/H")
    monkeypatch.setenv("APPDATA", "/R")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    found = find_known_client(name).path(scope, Path("/P"))  # pyright: ignore[reportArgumentType]
    assert found.as_posix() == f"/{path}"


def test_a_scope_that_a_client_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="--scope user"):
        KNOWN_CLIENTS["windsurf"].path("project", Path())
