"""The faults, one file a kind. A file has `FAMILIES`, and is named here to take part."""

from __future__ import annotations

from importlib import import_module

from tests.attack.trial import Attack

MODULES = ("carried", "paused", "clocks", "disks", "scarce")


def faults() -> list[Attack]:
    """Every row, family by family."""
    return [row for name in MODULES for family in import_module(f"{__name__}.{name}").FAMILIES for row in family.rows]
