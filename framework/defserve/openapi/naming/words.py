"""Identifiers taken apart into words, and put together again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 64
"""Several model APIs take no longer names."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+")


def words(text: str) -> list[str]:
    """`UsersController_findAll` → users, controller, find, all."""
    plain = unicodedata.normalize("NFKD", text[:500]).encode("ascii", "ignore").decode()
    return [word.lower() for part in _SPLIT.split(plain) for word in _CAMEL.split(part) if word]


def unrepeated(found: Sequence[str]) -> list[str]:
    """Without a run of words that follows itself: navigate, post, navigate, post → navigate, post."""
    kept = list(found)
    size = len(kept) // 2
    while size:
        at = 0
        while at + 2 * size <= len(kept):
            if kept[at : at + size] == kept[at + size : at + 2 * size]:
                del kept[at + size : at + 2 * size]
            else:
                at += 1
        size = min(size - 1, len(kept) // 2)
    return kept


def joined(found: Sequence[str], most: int = LONGEST) -> str:
    """The words as one name, shortened to fit by leaving out words from the middle."""
    kept = list(found)
    while len("_".join(kept)) > most and len(kept) > 2:
        del kept[len(kept) // 2]
    return "_".join(kept)[:most].strip("_")
