"""Which calls of a program are awaited, read from its source: their answer is a future, that of others a value."""

from __future__ import annotations

import re
from functools import cached_property

# Functions whose arguments are awaited together or later.
GATHERING = frozenset({b"gather", b"create_task", b"ensure_future", b"wait_for", b"wait", b"as_completed", b"shield"})

# Of the host's functions, the one that is asynchronous by its contract.
ASYNCHRONOUS = "call_tool"

_AWAIT = re.compile(rb"\bawait[\s(\\]*\Z")
_LINE = re.compile(rb"\r\n|\r|\n")

# Not Python's parser: its time and its stack are for sources that one trusts. A wrong guess costs the program an error.
# A text ends with the source at the latest, and what was taken is never given back, so each byte is read once.
_TOKEN = re.compile(
    rb"(\"\"\"|''')(?:\\.|(?!\1)[^\\])*+\1?+"
    rb"|\"(?:\\.|[^\"\\\n])*+\"?+|'(?:\\.|[^'\\\n])*+'?+"
    rb"|#[^\n]*"
    rb"|(?P<name>[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)"
    rb"|(?P<opens>[(\[{])|(?P<closes>[)\]}])",
    re.DOTALL,
)


class AwaitedCalls:
    """Reads a source when its first call is asked about. Positions are offsets in its UTF-8 bytes."""

    def __init__(self, source: str) -> None:
        self._source = source.encode("utf-8", "replace")

    def is_deferred(self, start: int, name: str) -> bool:
        """Whether the call at this position is awaited: there, by a function that gathers, or by its contract."""
        return (
            name == ASYNCHRONOUS
            or start in self._find_gathered_calls
            or _AWAIT.search(self._source, max(0, start - 64), start) is not None
        )

    def find_line(self, start: int) -> int:
        """The line of a position, from 1."""
        return 1 + len(_LINE.findall(self._source, 0, start))

    @cached_property
    def _find_gathered_calls(self) -> frozenset[int]:
        """Where names stand among the arguments of a gathering function, at any depth."""
        if not any(word in self._source for word in GATHERING):
            return frozenset()
        found: set[int] = set()
        inside, before = [False], b""
        for token in _TOKEN.finditer(self._source):
            if token["name"] is not None:
                before = token["name"]
                if inside[-1]:
                    found.add(token.start())
                continue
            if token["opens"] is not None:
                inside.append(inside[-1] or (token["opens"] == b"(" and before in GATHERING))
            elif token["closes"] is not None and len(inside) > 1:
                inside.pop()
            before = b""
        return frozenset(found)
