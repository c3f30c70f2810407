from __future__ import annotations

import struct
import zlib
from base64 import b64decode

import pytest

from defserve import ToolError
from defserve.testing import SyncClient


def rows_of(png: bytes) -> list[bytes]:
    """The rows of pixels of a PNG, each chunk checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, dict[bytes, bytes]()
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = zlib.decompress(chunks[b"IDAT"])
    rows = [pixels[start + 1 : start + 1 + 3 * width] for start in range(0, len(pixels), 3 * width + 1)]
    assert len(rows) == height
    return rows


def test_the_chart_is_a_picture_with_bars_as_high_as_its_values(client: SyncClient):
    text, picture = client.call_raw("bar_chart", {"values": [1, 2, 0, 4]})["content"]
    assert text["text"] == "4 bars; the highest is 4"
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    rows = rows_of(b64decode(picture["data"]))
    blue = [sum(row[3 * column : 3 * column + 3] == b"\x33\x66\xcc" for row in rows) for column in (0, 20, 40, 60)]
    assert blue == [30, 60, 0, 120]


def test_what_cannot_be_drawn_is_refused(client: SyncClient):
    with pytest.raises(ToolError, match="values"):
        client.call("bar_chart", values=[])
    with pytest.raises(ToolError, match=r"values\[1\]"):
        client.call("bar_chart", values=[1, -2])
