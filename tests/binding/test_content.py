"""Parts of an answer."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from defserve.binding.results import Audio, Embedded, File, Image, Link, Text
from tests.rows import for_each_row

PNG = b"\x89PNG\r\n\x1a\n...."


@for_each_row(
    ("part", "mime_type"),
    [
        (Image(PNG), "image/png"),
        (Image(b"?", format="jpg"), "image/jpeg"),
        (Image(b"?", format="SVG"), "image/svg+xml"),
        (Image(b"?", mime_type="image/x-odd"), "image/x-odd"),
        (Image(b"?", "image/png"), "image/png"),
        (Audio(b"?", format="mp3"), "audio/mpeg"),
        (Audio(b"RIFF1234WAVEfmt "), "audio/wav"),
    ],
)
def test_the_mime_type_is_said_or_seen(part: Any, mime_type: str) -> None:
    assert part.mime_type == mime_type


def test_an_image_is_read_from_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(b"data")
    image = Image(path=tmp_path / "a.gif")
    assert (image.data, image.mime_type) == (b"data", "image/gif")


@for_each_row(
    ("make", "said"),
    [
        (lambda: Image(), "either data= or path="),
        (lambda: Image(b"", path="x"), "either data= or path="),
        (lambda: Image(b"unknown"), "say format="),
        (lambda: Image(b"?", "png"), "'png' is not a MIME type: say format='png'"),
        (lambda: Image("text"), "data is bytes, not str: say path='text'"),
        (lambda: Image(b"RIFF1234WAVEfmt "), "cannot hold audio/wav"),
        (lambda: Embedded("a:b"), "either text= or data="),
        (lambda: File(), "either a path or data="),
        (lambda: File(data=b""), "needs a name="),
    ],
)
def test_a_part_that_makes_no_sense_is_a_type_error(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_a_file_is_an_embedded_resource_that_hides_its_directory(tmp_path: Path) -> None:
    (tmp_path / "my notes.md").write_text("# hi")
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    notes, binary = File(tmp_path / "my notes.md"), File(tmp_path / "a.bin")
    assert isinstance(notes, Embedded)
    assert (notes.uri, notes.text, notes.data, notes.mime_type) == (
        "file:///my%20notes.md",
        "# hi",
        None,
        "text/markdown",
    )
    assert (binary.text, binary.data, binary.mime_type) == (None, b"\0\1", "application/octet-stream")


@for_each_row(
    ("part", "text", "data"),
    [
        (File(data="a,b", name="a.csv"), "a,b", None),
        (File(data=b"%PDF", name="a.pdf"), None, b"%PDF"),
        (File(data=b"\xff\xfe", name="a.txt"), None, b"\xff\xfe"),
        (File(data=b"{}", name="a.json"), "{}", None),
    ],
)
def test_a_file_is_text_where_it_can_be(part: File, text: str | None, data: bytes | None) -> None:
    assert (part.text, part.data) == (text, data)


def test_a_link_is_named_after_its_uri() -> None:
    assert Link("https://example.org/a/report.pdf").name == "report.pdf"
    assert Link("https://example.org/x", "named").name == "named"


def test_parts_are_frozen_and_compare_by_value() -> None:
    part = Text("a", meta={"k": 1})
    assert part == Text("a", meta={"k": 1}) != Text("a")
    assert Text("a") != "a"
    assert repr(Text("a")) == "Text(text='a')"
    with pytest.raises(AttributeError, match="frozen"):
        part.text = "b"


def test_a_file_may_have_a_name_that_is_not_utf_8() -> None:
    assert File(data=b"x", name="a\udcff.txt").uri == "file:///a%3F.txt"


@for_each_row("part", [Text("a", meta={"b": 1}), Image(PNG), File(data=b"\0", name="a.bin"), Link("https://a.test/b")])
def test_a_part_can_be_copied_and_pickled(part: Any) -> None:
    assert copy.copy(part) == copy.deepcopy(part) == pickle.loads(pickle.dumps(part)) == part
