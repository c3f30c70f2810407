"""The table of hidden characters for the inspector's page. `python -m tests.hidden_characters` writes it."""

from __future__ import annotations

from defserve.base.hidden_characters import EMOJI, HIDDEN_RANGES
from tests.imports import PACKAGE

TABLE = PACKAGE / "inspector" / "page" / "parts" / "hidden_table.js"

# Their letters are written from right to left: Hebrew to Arabic, their presentation forms, old and new scripts.
RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"


def written(pattern: str) -> str:
    """A pattern as a text of JavaScript, for a regular expression with the flag `u`."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() else f"\\\\u{{{ord(letter):x}}}" for letter in pattern
    )


def table() -> str:
    """The file, from the table of the package."""
    return (
        "// The characters that hide something. `python -m tests.hidden_characters` writes this file from\n"
        "// base/hidden_characters.py.\n"
        f'export const HIDDEN = "{written("".join(HIDDEN_RANGES.values()))}";\n'
        f'export const EMOJI = "{written(EMOJI)}";\n'
        f'export const RIGHT_TO_LEFT = "{written(RIGHT_TO_LEFT)}";\n'
        'export const ISOLATE = "\\u2068";\n'
        'export const END_ISOLATE = "\\u2069";\n'
    )


if __name__ == "__main__":
    TABLE.write_text(table())
