"""A server that keeps a state for each caller, with a dangerous tool that believes it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from defserve import Server, State, dangerous
from defserve.auth import StaticTokens

MARKS = Path(os.environ["ATTACK_MARKS"])


class Words(BaseModel):
    words: list[str] = []


server = Server("notebook", "1", auth=StaticTokens({"b" * 40: "bob", "e" * 40: "eve"}), secret="s" * 32)
book = server.feature_set("words.edit", "Keeps words")
book.state(Words, mode="data")


@book.tool
def add(word: str, kept: State[Words]) -> str:
    """Keep a word."""
    kept.words.append(word)
    return "kept"


@book.tool
@dangerous(confirm=False)
def burn(word: str, kept: State[Words]) -> str:
    """Do something that depends on the state."""
    with MARKS.open("a") as file:
        file.write(word + "\n")
    return f"burnt {kept.words}"
