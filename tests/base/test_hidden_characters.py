"""One table says which characters hide something. It is compared with Unicode's, and nobody has another one."""

from __future__ import annotations

import re
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from defserve.base.hidden_characters import (
    find_hidden_characters,
    has_hidden_characters,
    remove_hidden_characters,
    replace_hidden_characters,
)
from tests.imports import PACKAGE
from tests.rows import for_each_row

HIDING: frozenset[str] = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories whose characters have no ink."""
WITH_INK = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Format characters that are drawn: Prepended_Concatenation_Mark of PropList.txt."""
IGNORABLE = {
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
    *range(0x180B, 0x1810), *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE1000),
}  # fmt: skip
"""Default_Ignorable_Code_Point of DerivedCoreProperties.txt, Unicode 16."""
BLANK = {0x2800, 0x16FE4, 0x1D159, *range(0x13430, 0x13441)}
"""Symbols, marks and controls that are drawn as nothing."""


def test_the_table_is_what_unicode_says_of_every_code_point() -> None:
    hidden, shown = list[str](), list[str]()
    listed = IGNORABLE | BLANK
    for code, letter in enumerate(map(chr, range(sys.maxunicode + 1))):
        hides = (unicodedata.category(letter) in HIDING and code not in WITH_INK) or code in listed
        (hidden if hides else shown).append(letter)
    assert [letter for letter in hidden if not has_hidden_characters(letter)] == []
    # Many in one text, as a question for each of a million takes seconds.
    blocks = ["a".join(shown[begin : begin + 1000]) for begin in range(0, len(shown), 1000)]
    assert [block for block in blocks if has_hidden_characters(block)] == []


# Their characters have no name of their own, but a number.
IDEOGRAPHS = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0x17000, 0x18D80), (0x20000, 0xE0000), (0xF0000, 0x110000))


def test_every_variation_selector_filler_and_tag_that_unicode_names_is_in_the_table() -> None:
    words = re.compile(r"VARIATION SELECTOR|HANGUL.* FILLER|^TAG |ZERO WIDTH|WORD JOINER|GRAPHEME JOINER|INVISIBLE")
    begin, codes = 0, list[int]()
    for first, after in IDEOGRAPHS:
        codes += range(begin, first)
        begin = after
    named = [code for code in codes if words.search(unicodedata.name(chr(code), ""))]
    assert len(named) > 300
    assert [unicodedata.name(chr(code)) for code in named if not has_hidden_characters(chr(code))] == []


@for_each_row(
    "text",
    ["👩\u200d👩\u200d👧", "❤️", "1\ufe0f\u20e3", "🏳️\u200d🌈", "👩🏽\u200d🔬", "⚠️ careful",
     "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"],
)  # fmt: skip
def test_an_emoji_hides_nothing(text: str) -> None:
    assert list(find_hidden_characters(text)) == []
    assert remove_hidden_characters(text) == text


@for_each_row(
    "text",
    ["wipe\ufe0f", "\u3164", "a\U000e0100", "a\u200db", "日\ufe0f", "🏴\U000e0061\U000e0062\U000e007f",
     "9\ufe0f", "👩\u200d", "\u200d👩"],
)  # fmt: skip
def test_the_same_characters_outside_an_emoji_hide_something(text: str) -> None:
    assert has_hidden_characters(text)
    assert not has_hidden_characters(remove_hidden_characters(text))


@given(st.text(st.characters() | st.sampled_from("\u200d\ufe0f\u202e❤👩1\u20e3\U000e0061"), max_size=12))
def test_what_is_left_hides_nothing(text: str) -> None:
    left = remove_hidden_characters(text)
    assert not has_hidden_characters(remove_hidden_characters(left))
    assert replace_hidden_characters(text, lambda character: character) == text


TABLE = re.compile(r"\\u(?:\{?)(?:202[a-e]|200[b-f]|206[0-9a-f]|fe0[0-9a-f]|3164|061c)|\\U000e0", re.IGNORECASE)


def test_nobody_else_has_a_table_of_hidden_characters() -> None:
    own = {"base/hidden_characters.py", "inspector/page/parts/hidden_table.js"}
    files = [path for ending in ("py", "js", "css") for path in PACKAGE.rglob(f"*.{ending}")]
    others = [
        path.relative_to(PACKAGE).as_posix()
        for path in files
        if "vendor" not in path.parts and TABLE.search(path.read_text())
    ]
    assert sorted(set(others) - own) == []


def test_what_is_shown_is_not_judged_by_isprintable_alone() -> None:
    """It takes fillers and variation selectors for ink. For ASCII it is right."""
    lines = [
        f"{path.relative_to(PACKAGE).as_posix()}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if "isprintable()" in line and "isascii()" not in line
    ]
    assert lines == []
