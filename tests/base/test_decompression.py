"""Bodies are unpacked whole, whatever parts they come in, and never in large pieces. Texts are read as they say."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from encodings.aliases import aliases

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.base.http_connection import MAX_PIECE_BYTES, Decompressor, find_text_codec
from tests.rows import for_each_row


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare),
]


@given(
    how=st.sampled_from(PACKED),
    text=st.binary(min_size=1, max_size=40),
    times=st.integers(1, 20_000),
    step=st.integers(1, 5_000),
)
def test_a_body_comes_back_whole_and_in_small_pieces(
    how: tuple[str, Callable[[bytes], bytes]], text: bytes, times: int, step: int
) -> None:
    coding, pack = how
    packed, decompressor = pack(text * times), Decompressor(coding)
    pieces = [piece for at in range(0, len(packed), step) for piece in decompressor.decompress(packed[at : at + step])]
    assert b"".join(pieces) == text * times
    assert all(0 < len(piece) <= MAX_PIECE_BYTES for piece in pieces)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_not_compressed_is_an_error(coding: str) -> None:
    with pytest.raises(zlib.error):
        list(Decompressor(coding).decompress(b"\xff plain text"))


def test_what_follows_the_end_of_a_body_is_not_unpacked() -> None:
    assert b"".join(Decompressor("gzip").decompress(gzip.compress(b"one") + b"more")) == b"one"


@for_each_row(
    "content_type, codec",
    [
        ("", "utf-8"),
        ("text/html", "utf-8"),
        ("text/html; charset=utf-8", "utf-8"),
        ('text/html; Charset = "ISO-8859-1"', "iso8859-1"),
        ("text/plain;charset='windows-1252';x=y", "cp1252"),
        ("text/plain; charset=Shift_JIS", "shift_jis"),
        ("text/plain; charset=gb2312", "gb2312"),
        ("text/plain; charset=UTF-16LE", "utf-16-le"),
        ("text/plain; charset=koi8-r", "koi8-r"),
        ("text/plain; charset=cp9999", "utf-8"),
        ("text/plain; charset=nobody-knows", "utf-8"),
        ("text/plain; charset=*", "utf-8"),
        ("text/plain; charset*=punycode''a-b", "utf-8"),
    ],
)
def test_a_text_is_read_in_the_character_set_that_its_sender_names(content_type: str, codec: str):
    assert find_text_codec(content_type) == codec


@for_each_row("name", sorted({*aliases, *aliases.values(), "idna", "punycode", "undefined", "unicode_escape"}))
def test_what_is_no_character_set_reads_no_text_of_a_stranger(name: str):
    codec = find_text_codec(f"text/plain; charset={name}")
    # Those that take time without bounds, fail on purpose, or stand for something else than text.
    assert not codec.startswith(("punycode", "idna", "undefined", "unicode", "raw", "utf-7", "rot", "mbcs", "oem"))
    assert isinstance(bytes(range(256)).decode(codec, "replace"), str)
