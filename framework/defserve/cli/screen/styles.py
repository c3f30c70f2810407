"""The looks of everything that commands print: a name for each, and what it is drawn with."""

from __future__ import annotations

from typing import Final

# Only the sixteen colours that every terminal has and lets its user choose.
STYLES: Final = {
    "heading": "bold",
    "title": "bold cyan",
    "name": "cyan",
    "type": "green",
    "default": "magenta",
    "about": "dim",
    "faint": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "error": "bold red",
    "fix": "bold green",
    "added": "green",
    "removed": "red",
    "option": "cyan",
    # Progress, with the names that rich uses.
    "bar.back": "dim",
    "bar.complete": "cyan",
    "bar.finished": "green",
    "progress.spinner": "cyan",
    "progress.percentage": "default",
    "progress.elapsed": "dim",
    # JSON, with the names that rich's highlighter uses.
    "json.key": "cyan",
    "json.str": "green",
    "json.number": "magenta",
    "json.bool_true": "yellow",
    "json.bool_false": "yellow",
    "json.null": "dim",
    "json.brace": "default",
}

STATES: Final = {
    **dict.fromkeys(("connected", "healthy", "ok", "low", "safe"), "good"),
    **dict.fromkeys(
        ("connecting", "restarting", "starting", "draining", "held", "degraded", "moderate", "missing"), "warning"
    ),
    **dict.fromkeys(("error", "failed", "unhealthy", "dangerous", "broken", "critical", "high"), "bad"),
    **dict.fromkeys(("stopped", "disabled", "idle", "unused", "-"), "faint"),
}
"""A word that says how something is → its style."""


def state(word: str) -> tuple[str, str]:
    """A word with the style of what it says."""
    return word, STATES.get(word, "")
