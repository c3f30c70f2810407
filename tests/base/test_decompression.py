"""Bodies are unpacked whole, whatever parts they come in, and never in large pieces."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.base.peer_bounds import MAX_PIECE_BYTES, Decompressor


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
