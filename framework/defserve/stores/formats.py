"""What to say about stored data that a later version of defserve has written. The rule is in the door of `stores`."""

from __future__ import annotations


def newer_format(what: str, found: object, known: int) -> str:
    """The message for `what`, which has the format `found`, where this version reads up to `known`."""
    return f"{what} has format {found}; this version of defserve reads up to format {known}: upgrade defserve"
