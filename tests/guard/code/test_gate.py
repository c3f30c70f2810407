"""Text that must not reach a parser."""

from __future__ import annotations

from defserve.guard.code.policy import STRICT, decode_source, find_exceeded_bound, strip_comments_and_strings
from defserve.guard.verdict import Violation
from tests.rows import for_each_row


@for_each_row(
    "source",
    [b"\xff", b"x=\xc0\x80", b"x=1\x00", "x='\ud800'", "# coding: utf-7", "\r# -*- coding: latin-1 -*-", "x='\u202e'"],
)
def test_dishonest_encodings_are_refused(source: str | bytes) -> None:
    assert isinstance(decode_source(source, 1000), Violation)


@for_each_row("source", ["# coding: utf-8\nx=1", b"\xef\xbb\xbfx=1", "x='coding: utf-7'", "x=1\n\n# coding: x"])
def test_honest_encodings_pass(source: str | bytes) -> None:
    assert isinstance(decode_source(source, 1000), str)


def test_a_byte_order_mark_is_taken_off() -> None:
    assert decode_source(b"\xef\xbb\xbfx=1", 100) == "x=1"


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    assert find_exceeded_bound(f"x='{'(' * 100}' # {'[' * 100}", STRICT) is None
    assert find_exceeded_bound("(" * 61, STRICT) is not None


def test_code_inside_f_strings_counts() -> None:
    assert find_exceeded_bound("f'" + "{a}" * 1000 + "'", STRICT) is not None
    assert find_exceeded_bound("'" + "{a}" * 1000 + "'", STRICT) is None


def test_strings_and_comments_are_taken_out_but_f_strings_stay() -> None:
    assert strip_comments_and_strings("a  = 'eval(' # exec(\nb = f'{c}'") == "a = '' b = f'{c}'"
