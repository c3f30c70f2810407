"""What a peer sent, cut to be repeated: an error, a reply or a log line never grows with somebody else's text."""

from __future__ import annotations

from typing import Any, Final, cast

MAX_ECHO: Final = 1_000
"""Characters of what a peer sent that an error repeats to it."""
MAX_PEER_TEXT: Final = 4_000
"""Characters of another side's own error that ours shows."""
MAX_VIOLATION: Final = 300
MAX_VIOLATIONS: Final = 20
"""Characters of what a guard found, and how many of those a refusal names."""


def cut_text(text: str, most: int = MAX_ECHO) -> str:
    """A text that a peer may have sent, short enough to be repeated in an error, a reply or a log line."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def cut_data(data: Any, most: int = MAX_ECHO, depth: int = 6) -> Any:
    """The data of an error with each of its texts cut. An address that one has to open stays whole."""
    if isinstance(data, str):
        return cut_text(data, most)
    if isinstance(data, dict) and depth:
        members = cast("dict[Any, Any]", data)
        return {
            cut_text(str(name), most): value if name in _WHOLE else cut_data(value, most, depth - 1)
            for name, value in members.items()
        }
    if isinstance(data, list) and depth:
        return [cut_data(item, most, depth - 1) for item in cast("list[Any]", data)]
    return cast("Any", data)


_WHOLE: Final = frozenset(("url", "requestState"))
