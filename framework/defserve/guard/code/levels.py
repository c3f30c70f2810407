"""MGP §7.2: the levels at which code is judged. The jailed child imports this file, so it imports little."""

from __future__ import annotations

from typing import Literal

CodeLevel = Literal["unrestricted", "standard", "strict", "readonly"]
RestrictedLevel = Literal["strict", "readonly"]
"""The levels at which RestrictedPython compiles the code."""
