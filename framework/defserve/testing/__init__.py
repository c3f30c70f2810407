"""Tests of a server without plumbing: the pytest fixtures of `defserve.testing.plugin`, and what they are made of.

A test runs over every transport and in both eras without set-up. A question that no answer is prepared for fails the
test. Names are looked up when they are first used: pytest imports this package at every start.

May import: `host`, `protocols.mcpl`, `runner.loopback`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.host.answers import Accept, Cancel, Decline
    from defserve.testing.client import SyncClient
    from defserve.testing.script import Unanswered, Unused
    from defserve.testing.snapshots import assert_schemas

__all__ = ["Accept", "Cancel", "Decline", "SyncClient", "Unanswered", "Unused", "assert_schemas"]

_HOMES = {
    "Accept": "defserve.host.answers",
    "Cancel": "defserve.host.answers",
    "Decline": "defserve.host.answers",
    "SyncClient": "defserve.testing.client",
    "Unanswered": "defserve.testing.script",
    "Unused": "defserve.testing.script",
    "assert_schemas": "defserve.testing.snapshots",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
