"""The names of arguments. Model APIs take letters, digits, `_`, `.` and `-`, at most 64 of them."""

from __future__ import annotations

import re
from typing import Final

from defserve.openapi.naming.words import LONGEST

_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def argument_name(name: str, place: str, taken: set[str]) -> str:
    """`filter[name]` → `filter_name`. If a name is taken, its place is put before it: `query_id`."""
    plain = _ODD.sub("_", name).strip("_")[: LONGEST - 12] or place
    for candidate in (plain, f"{place}_{plain}"):
        if candidate not in taken:
            return candidate
    number = 2
    while f"{plain}_{number}" in taken:
        number += 1
    return f"{plain}_{number}"
