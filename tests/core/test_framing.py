from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from defserve.core.messages import BOM, LineSplitter
from tests.rows import for_each_row

CASES: dict[str, tuple[bytes, list[bytes | None]]] = {
    "lines": (b"a\nb\n", [b"a", b"b"]),
    "blank lines are left out": (b"\n \r\n\t\na\n\n", [b"a"]),
    "a CR belongs to its line": (b"a\rb\r\n", [b"a\rb\r"]),
    "Unicode's separators do not cut": ("a\u2028b\u0085\n".encode(), ["a\u2028b\u0085".encode()]),
    "ASCII's separators do not cut": (b"a\x0bb\x0cc\x1c\n", [b"a\x0bb\x0cc\x1c"]),
    "a NUL is a byte like others": (b"\x00\n", [b"\x00"]),
    "a BOM at the start is dropped": (BOM + b"a\n" + BOM + b"b\n", [b"a", BOM + b"b"]),
    "a BOM after a blank line stays": (b"\n" + BOM + b"a\n", [BOM + b"a"]),
    "a BOM alone is blank": (BOM + b"\na\n", [b"a"]),
    "the longest line": (b"12345678\n", [b"12345678"]),
    "the longest line behind a BOM": (BOM + b"12345678\n", [b"12345678"]),
    "too long a line": (b"123456789\na\n", [None, b"a"]),
    "too long a line behind a BOM": (BOM + b"123456789\n", [None]),
    "a BOM after a line that is too long": (b"123456789\n" + BOM + b"a\n", [None, BOM + b"a"]),
    "too long twice": (b"123456789\n123456789\na\n", [None, None, b"a"]),
    "far too long": (b"1" * 1000 + b"\na\n", [None, b"a"]),
}


def fed(data: bytes, size: int, limit: int = 8) -> tuple[list[bytes | None], bytes | None]:
    lines, found = LineSplitter(limit), list[bytes | None]()
    for start in range(0, len(data), size):
        found += lines.feed(data[start : start + size])
    return found, lines.finish()


@for_each_row("size", [1, 2, 3, 7, 10_000])
@for_each_row("case", CASES)
def test_a_stream_is_cut_at_line_feeds_however_it_arrives(case: str, size: int):
    data, expected = CASES[case]
    assert fed(data, size) == (expected, None)


@for_each_row(
    ("data", "rest"),
    [(b"", None), (b"a\n", None), (b"a\nhalf", b"half"), (b"a\n  ", None), (b"123456789", None), (BOM + b"a", b"a")],
)
@for_each_row("size", [1, 100])
def test_the_end_gives_what_stood_after_the_last_line_feed(data: bytes, rest: bytes | None, size: int):
    assert fed(data, size)[1] == rest


def test_a_line_that_is_too_long_is_reported_before_it_ends_and_kept_nowhere():
    lines = LineSplitter(8)
    assert lines.feed(b"1" * 9) == [None]
    for _ in range(100):
        assert lines.feed(b"1" * 1000) == []
    assert not lines._rest
    assert lines.feed(b"1\nnext\n") == [b"next"]


streams = st.lists(
    st.sampled_from([b"\n", b"a", b"12345678", b"\r", b" ", BOM, b"\x00", b"\xff"]) | st.binary(max_size=5)
)


@given(streams.map(b"".join), st.integers(1, 9))
@example(BOM + b"12345678\n", 1)
def test_whole_and_in_pieces_give_the_same_lines(data: bytes, size: int):
    assert fed(data, size) == fed(data, len(data) + 1)


@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b"{}\n", b'{"a":1}\n', b"{\n}\n", b"{", b"\n", b" \n"]), max_size=8
    )
)
def test_what_is_one_whole_line_is_the_line_that_feeding_it_gives(chunks: list[bytes]):
    quick, slow = LineSplitter(8), LineSplitter(8)
    for chunk in chunks:
        line = quick.take_single_line(chunk)
        assert ([line] if line is not None else quick.feed(chunk)) == slow.feed(chunk)
