"""What can go wrong on a connection."""

from __future__ import annotations


class Broken(Exception):
    """The connection failed, or what came on it is not HTTP."""


class Unanswered(Broken):
    """A kept connection ended before one byte of the response came."""
