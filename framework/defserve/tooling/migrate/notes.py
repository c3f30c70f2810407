"""What a person has to look at after a program was rewritten."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """Something that is left to do by hand: the line in the program as it was, and what to do."""

    line: int
    text: str
