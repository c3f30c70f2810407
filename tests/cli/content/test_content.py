"""Content of servers: texts are printed, bytes are saved where nothing is lost."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.cli.content import (
    MAX_STEM_LENGTH,
    file_name,
    format_signature,
    is_content_list,
    list_media_blocks,
    render_content,
    save,
)
from defserve.cli.screen_blocks import iter_plain_lines
from defserve.errors import UsageError
from tests.effort import cpu_within
from tests.hostile_schemas import WIDE
from tests.rows import for_each_row

DATA = base64.b64encode(b"bytes").decode()


def printed(*blocks: Any, name: str = "plot", folder: str = ".") -> list[str]:
    return [line for block in render_content(blocks, name, folder) for line in iter_plain_lines(block)]


def test_pictures_and_sounds_are_saved_and_named(folder: Path):
    assert printed(
        {"type": "text", "text": "Here"},
        {"type": "image", "data": DATA, "mimeType": "image/png"},
        {"type": "audio", "data": DATA, "mimeType": "audio/wav"},
    ) == ["Here", "saved plot.png (image/png, 5 bytes)", "saved plot.wav (audio/wav, 5 bytes)"]
    assert (folder / "plot.png").read_bytes() == b"bytes"


def test_no_file_is_overwritten(folder: Path):
    (folder / "plot.png").write_text("mine")
    assert printed({"type": "image", "data": DATA, "mimeType": "image/png"}) == [
        "saved plot-2.png (image/png, 5 bytes)"
    ]
    (folder / "plot-3.png").symlink_to(folder / "elsewhere")
    assert printed({"type": "image", "data": DATA, "mimeType": "image/png"}) == [
        "saved plot-4.png (image/png, 5 bytes)"
    ]
    assert (folder / "plot.png").read_text() == "mine" and not (folder / "elsewhere").exists()


def test_resources_and_links_are_shown(folder: Path):
    assert printed(
        {"type": "resource", "resource": {"uri": "a://b/chart.png", "blob": DATA, "mimeType": "image/png"}},
        {"type": "resource", "resource": {"uri": "a://t", "text": "text of it"}},
        {"type": "resource_link", "uri": "a://b", "name": "b"},
        {"type": "hologram"},
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
        "nonsense",
    ) == [
        "saved chart.png (image/png, 5 bytes)",
        "text of it",
        "a://b  b",
        "(content of an unknown type: hologram)",
        "broken: image/png that is not base64",
        "(content of an unknown type: None)",
    ]


def test_a_folder_that_cannot_be_made_is_an_error(folder: Path):
    (folder / "taken").write_text("a file")
    for place in ("taken", "taken/pictures"):
        with pytest.raises(UsageError, match="cannot make the folder") as refused:
            printed({"type": "image", "data": DATA, "mimeType": "image/png"}, folder=place)
        assert "--output DIR" in refused.value.fix


def test_a_folder_that_is_not_there_is_made(folder: Path):
    printed({"type": "image", "data": DATA, "mimeType": "image/png"}, folder="new/pictures")
    assert len(list((folder / "new" / "pictures").iterdir())) == 1


def test_bytes_beside_a_value_are_found():
    picture = {"type": "image", "data": DATA}
    embedded = {"type": "resource", "resource": {"uri": "a://b", "blob": DATA}}
    assert list_media_blocks({"content": [{"type": "text"}, picture, embedded, 3]}) == [picture, embedded]
    assert list_media_blocks({}) == []


@for_each_row(
    ("value", "is_it"), [([{"type": "text"}], True), ([], False), ([1], False), ({"type": "text"}, False), ("x", False)]
)
def test_a_list_of_content_is_told_from_a_value(value: object, is_it: bool):
    assert is_content_list(value) is is_it


@given(st.text(max_size=300), st.text(max_size=40))
def test_a_name_never_leaves_its_folder_and_is_plain(name: str, kind: str):
    stem, ending = file_name(name, kind)
    assert stem and len(stem) <= MAX_STEM_LENGTH and not stem.startswith((".", "-"))
    assert all(char.isascii() and (char.isalnum() or char in "_-") for char in stem)
    assert Path(stem + ending).name == stem + ending


def test_saving_gives_the_path(tmp_path: Path):
    assert save(b"x", "../../etc/passwd", "text/plain", str(tmp_path)) == tmp_path / "passwd.txt"


@for_each_row("name", list(WIDE))
def test_a_tool_with_as_much_of_anything_as_a_server_can_list_is_written_in_little_time(name: str):
    assert cpu_within(0.5, lambda: format_signature({"name": "far", "inputSchema": WIDE[name]}))
