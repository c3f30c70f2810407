"""Numbers of things, in words."""

from __future__ import annotations

from typing import Any


def counted(number: Any, noun: str) -> str:
    """`1 tool`, `2,000 tools`. What is no number stands as it is."""
    shown = f"{number:,}" if isinstance(number, int | float) else str(number)
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"
