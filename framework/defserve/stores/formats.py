"""The messages about stored data that another version of defserve wrote. `stores/__init__.py` has the rule."""

from __future__ import annotations

from typing import Final

NAMES_NO_SERVER: Final = (
    "The store has values of defserve 0.1.0, which do not say which server they belong to; "
    "say it once: defserve state adopt STORE --server NAME"
)


def newer_format(what: str, found: object, known: int) -> str:
    """The message for `what`, which has the format `found`, where this version reads up to `known`."""
    return f"{what} has format {found}; this version of defserve reads up to format {known}: upgrade defserve"
