"""Differences between a server and its migrated self that are meant, each with its reason.

Server → pairs of a pattern for lines that the comparison prints, and why it is so.
"""

from __future__ import annotations

from typing import Final

DIFFERENCES: Final[dict[str, list[tuple[str, str]]]] = {}
