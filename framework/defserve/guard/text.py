"""Finds characters that hide or reorder what a reader sees. Does not judge them."""

from __future__ import annotations

from collections.abc import Iterator

from defserve.base.hidden_characters import find_hidden


def hidden(text: str) -> Iterator[tuple[int, str]]:
    """Where `text` holds a character that hides, reorders or breaks it: (index, what it is), in order.

    Line breaks count, tabs do not. A caller that allows several lines skips them. A description reads
    `direction control U+202E`.
    """
    for index, kind in find_hidden(text):
        if text[index] != "\t":
            yield index, f"{kind} U+{ord(text[index]):04X}"
