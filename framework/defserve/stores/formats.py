"""The message about stored data that a later version of defserve wrote. `stores/__init__.py` has the rule."""

from __future__ import annotations


def newer_format(what: str, found: object, known: int) -> str:
    """The message for `what`, which has the format `found`, where this version reads up to `known`."""
    return f"{what} has format {found}; this version of defserve reads up to format {known}: upgrade defserve"
