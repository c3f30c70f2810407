"""The table of hidden characters for the inspector's page. `python -m tests.hidden_characters` writes it."""

from __future__ import annotations

import re

from defserve.base.hidden_characters import EMOJI, HIDDEN_CHARACTER_RANGES
from tests.imports import PACKAGE

TABLE = PACKAGE / "inspector" / "page" / "parts" / "hidden_table.js"

# Their letters are written from right to left: Hebrew to Arabic, their presentation forms, old and new scripts.
RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"

LINE = 120


def written(pattern: str) -> str:
    """A pattern as a text of JavaScript, for a regular expression with the flag `u`."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() else f"\\\\u{{{ord(letter):x}}}" for letter in pattern
    )


def constant(name: str, pattern: str) -> str:
    """A constant, in lines as the formatter of the page leaves them."""
    text = written(pattern)
    if len(line := f'export const {name} = "{text}";') <= LINE:
        return line + "\n"
    parts = [""]
    for each in re.findall(r"\\\\u\{[0-9a-f]+\}|.", text):
        if len(parts[-1]) + len(each) > LINE - len('  "" +'):
            parts.append("")
        parts[-1] += each
    return f"export const {name} =\n" + " +\n".join(f'  "{part}"' for part in parts) + ";\n"


def table() -> str:
    """The file, from the table of the package."""
    return (
        "// The characters that hide something. `python -m tests.hidden_characters` writes this file from\n"
        "// base/hidden_characters.py.\n"
        + constant("HIDDEN", "".join(HIDDEN_CHARACTER_RANGES.values()))
        + constant("EMOJI", EMOJI)
        + constant("RIGHT_TO_LEFT", RIGHT_TO_LEFT)
        + 'export const ISOLATE = "\\u2068";\n'
        'export const END_ISOLATE = "\\u2069";\n'
    )


if __name__ == "__main__":
    TABLE.write_text(table())
