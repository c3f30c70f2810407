from __future__ import annotations

from pathlib import Path

import pytest

from defserve import ToolError
from defserve.errors import PeerError
from defserve.testing import Decline, SyncClient


def test_files_are_written_listed_and_read(client: SyncClient, folder: Path):
    assert client.call("write_file", path="notes/today.md", text="tea") == "3 characters written"
    (folder / "b.txt").write_text("x")
    assert client.call("list_files") == ["b.txt", "notes/today.md"]
    assert client.call("list_files", pattern="*.md") == ["notes/today.md"]
    assert client.call("read_file", path="notes/today.md") == "tea"
    with pytest.raises(ToolError, match="There is no file 'none.md'"):
        client.call("read_file", path="none.md")


def test_no_path_leads_out(client: SyncClient, folder: Path, tmp_path_factory: pytest.TempPathFactory):
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("secret")
    (folder / "link").symlink_to(outside)
    for path in ("../secret", "/etc/passwd", "~/x", "link", str(outside), "a/../../x", "..%2fx"):
        for tool, more in (("read_file", {}), ("write_file", {"text": "x"}), ("delete_file", {})):
            with pytest.raises((ToolError, PeerError), match="refused|rejected|Blocked"):
                client.call(tool, path=path, **more)
    assert outside.read_text() == "secret"
    with pytest.raises(ToolError, match="pattern"):
        client.call("list_files", pattern="../*")


def test_a_long_file_is_not_read(client: SyncClient, folder: Path):
    (folder / "long").write_bytes(b"x" * 100_001)
    with pytest.raises(ToolError, match="longer than 100000 bytes"):
        client.call("read_file", path="long")


def test_somebody_has_to_agree_before_a_file_goes(client: SyncClient, folder: Path):
    (folder / "a").write_text("a")
    client.will_answer(Decline)
    with pytest.raises(ToolError, match="not confirmed"):
        client.call("delete_file", path="a")
    assert (folder / "a").exists()
    client.will_answer({"value": True})
    assert client.call("delete_file", path="a") == "It is gone."
    assert not (folder / "a").exists()
