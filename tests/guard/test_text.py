"""Text that does not show what it is, is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.base.hidden_characters import iter_hidden_character_notes
from tests.rows import for_each_row


@for_each_row(
    ("text", "found"),
    [
        ("a\x00b", [(1, "control character U+0000")]),
        ("\x1b[2K", [(0, "control character U+001B")]),
        ("a\nb\r", [(1, "line break U+000A"), (3, "line break U+000D")]),
        ("a\x85\u2028\u2029", [(1, "line break U+0085"), (2, "line break U+2028"), (3, "line break U+2029")]),
        ("\u202egpj", [(0, "direction control U+202E")]),
        ("a\u2066b\u2069", [(1, "direction control U+2066"), (3, "direction control U+2069")]),
        ("pay\u200bpal", [(3, "invisible character U+200B")]),
        ("\ufeffa", [(0, "invisible character U+FEFF")]),
        ("a\ufe0f", [(1, "invisible character U+FE0F")]),
        ("\u3164", [(0, "invisible character U+3164")]),
        ("x\U000e0041", [(1, "tag character U+E0041")]),
        ("\ud800", [(0, "lone surrogate U+D800")]),
    ],
)
def test_what_hides_is_named_with_its_place(text: str, found: list[tuple[int, str]]) -> None:
    assert list(iter_hidden_character_notes(text)) == found


@for_each_row(
    "text", ["", "a\tb", "grüße, 日本語, العربية", "🎉 ❤️", "👩\u200d👩\u200d👧", "ｒｍ", "a\u00a0b", "e\u0301"]
)
def test_plain_text_of_any_script_hides_nothing(text: str) -> None:
    assert list(iter_hidden_character_notes(text)) == []


@given(st.text())
def test_findings_come_in_order_and_point_at_characters(text: str) -> None:
    places = [index for index, _ in iter_hidden_character_notes(text)]
    assert places == sorted(set(places))
    assert all(f"U+{ord(text[index]):04X}" in what for index, what in iter_hidden_character_notes(text))
