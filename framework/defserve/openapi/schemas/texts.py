"""Descriptions for models: short, on few lines, without characters that hide or reorder text."""

from __future__ import annotations

import re
from typing import Final

from defserve.guard.text import hidden

OF_TOOL: Final = 600
OF_FIELD: Final = 240

_TAG: Final = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_LINK: Final = re.compile(r"\[([^\[\]]{1,200})\]\([^()\s]{1,500}\)")
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_SENTENCE: Final = re.compile(r"[.!?](?=\s)")


def cleaned(text: str, most: int) -> str:
    """One line of at most `most` characters, cut at the end of a sentence or a word."""
    text = text[: 8 * most]
    odd = {index for index, _ in hidden(text) if text[index] not in "\r\n"}
    if odd:
        text = "".join(character for index, character in enumerate(text) if index not in odd)
    text = _LINK.sub(r"\1", _TAG.sub("", text))
    return cut(_BLANKS.sub(" ", text).strip(), most)


def cut(text: str, most: int) -> str:
    """At most so many characters of a text: whole sentences if they are a third of it, else whole words and `…`."""
    if len(text) <= most:
        return text
    head = text[:most]
    ends = [found.end() for found in _SENTENCE.finditer(head)]
    if ends and ends[-1] > most // 3:
        return head[: ends[-1]]
    return f"{head[: most - 1].rpartition(' ')[0] or head[: most - 1]}…"


def tool_description(name: str, summary: str, description: str, *, deprecated: bool, fallback: str) -> str:
    """What a tool says about itself: the summary, and as much of the description as says more."""
    head, rest = cleaned(summary, OF_TOOL // 2), cleaned(description.partition("\n\n")[0], OF_TOOL)
    if rest and head.lower().replace(" ", "_") == name:  # it was made of the name
        head = ""
    if rest.lower().rstrip(".").startswith(head.lower().rstrip(".")):
        head = ""
    ended = head if not head or head[-1] in ".!?…" else f"{head}."
    text = cut(" ".join(part for part in (ended if rest else head, rest) if part), OF_TOOL) or fallback
    return f"Deprecated. {text}" if deprecated else text
