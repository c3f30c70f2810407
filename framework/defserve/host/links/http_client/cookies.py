"""The cookies of one server. Load balancers use them to find the same worker again."""

from __future__ import annotations

import re
from typing import Final

MOST_COOKIES: Final = 20
LONGEST_COOKIE: Final = 4096

PAIR: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[\x21-\x3a\x3c-\x7e]*")
ENDED: Final = re.compile(r";\s*max-age=(?:0|-\d+)\s*(?:;|$)", re.IGNORECASE)


class Cookies:
    """Kept in memory and sent back to the one address that set them. Other attributes than `Max-Age=0` mean nothing."""

    __slots__ = ("_kept", "header")

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self.header = ""
        """The `Cookie` header; empty if there are none."""

    def take(self, lines: str) -> None:
        """Read what a response says in `Set-Cookie`, one cookie a line."""
        for line in lines.split("\n"):
            pair = line.partition(";")[0].strip()
            if len(pair) > LONGEST_COOKIE or PAIR.fullmatch(pair) is None:
                continue
            name = pair.partition("=")[0]
            if ENDED.search(line):
                self._kept.pop(name, None)
            elif name in self._kept or len(self._kept) < MOST_COOKIES:
                self._kept[name] = pair
        self.header = "; ".join(self._kept.values())
