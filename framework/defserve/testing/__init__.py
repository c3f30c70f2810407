"""Helps to test a server: the pytest fixtures of `defserve.testing.plugin`, and what they are made of.

A test can run over every transport and in both eras, without set-up. A question without a prepared answer fails the
test. Names are loaded when they are first used, because pytest imports this package at every start.

May import: `auth.local_token`, `host`, `protocols.mcp.versions`, `protocols.mcpl`, `runner.loopback`, `tooling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy

if TYPE_CHECKING:
    from defserve.host.answers import Accept, Cancel, Decline
    from defserve.testing.client import SyncClient
    from defserve.testing.script import Unanswered, Unused
    from defserve.testing.snapshots import assert_schemas
    from defserve.tooling.export.catalogue import catalogue
    from defserve.tooling.lint.calls import problems
    from defserve.tooling.listing import server_listing
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.host.answers": "Accept Cancel Decline",
            "defserve.testing.client": "SyncClient",
            "defserve.testing.script": "Unanswered Unused",
            "defserve.testing.snapshots": "assert_schemas",
            "defserve.tooling.export.catalogue": "catalogue",
            "defserve.tooling.lint.calls": "problems",
            "defserve.tooling.listing": "server_listing",
        },
    )

__all__ = [
    "Accept",
    "Cancel",
    "Decline",
    "SyncClient",
    "Unanswered",
    "Unused",
    "assert_schemas",
    "catalogue",
    "server_listing",
    "problems",
]
