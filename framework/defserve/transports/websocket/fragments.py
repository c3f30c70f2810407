"""How many fragments a WebSocket message may have. Each costs memory and time, however little is in it."""

from __future__ import annotations

from typing import Final

# A message has at most so many fragments that are smaller than this. Its size bounds how many others it has.
FRAGMENTS: Final = 1024
SMALL: Final = 1024
TOO_MANY: Final = "too many fragments"
