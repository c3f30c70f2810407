"""The table of all spaces of a store. A feature gets its space here and nowhere else, so no two features share one.

A `Space` is made only in this file; type checkers refuse a plain text where a store wants a space. A name that ends
in a colon stands for many spaces, one for each name that is put after it.

In a store, each of them stands behind the identity of its server (`identity`). Only `UNNAMED` do not: they belong to
the store itself, or to a log that has a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NewType

Space = NewType("Space", str)


class SpaceFamily(str):
    """Spaces whose names begin alike."""

    __slots__ = ()

    def of(self, name: str) -> Space:
        return Space(self + name)


FORMAT: Final = Space("format")
SERVERS: Final = SpaceFamily("server:")
API_KEYS: Final = Space("keys")
SECRETS: Final = Space("secrets")
AUDIT_HEADS: Final = Space("audit")
AUDIT_LOGS: Final = SpaceFamily("audit log:")
DENIED_TOKENS: Final = Space("denied tokens")
CHECKPOINTS: Final = SpaceFamily("state:")
NONCES: Final = SpaceFamily("nonce:")
LEASES: Final = SpaceFamily("lease:")
OAUTH_GRANTS: Final = SpaceFamily("oauth grant:")
TASKS: Final = SpaceFamily("task:")
TASK_ACCOUNTS: Final = SpaceFamily("task account:")

UNNAMED: Final = frozenset((FORMAT, AUDIT_HEADS, AUDIT_LOGS))
LASTING: Final = frozenset((API_KEYS, SECRETS, DENIED_TOKENS, CHECKPOINTS))
"""What does not end by itself: 0.1.0 kept it without the name of a server."""

TABLE: Final[Mapping[str, str]] = {
    FORMAT: "the format of a store that has no other place for it: `version`",
    SERVERS: "after the colon the identity of a server, a colon, and one of the other names: what is that server's",
    API_KEYS: "each API key under its id. 0.1.0 also kept the secret of checkpoint ids here, as `checkpoints`",
    SECRETS: "`checkpoints` is the secret of checkpoint ids, `checkpoints 0.1.0` what 0.1.0 made them with",
    AUDIT_HEADS: "the last signed head of each audit log that is anchored here, under the log's name",
    AUDIT_LOGS: "after the colon the log's name: each record under its number, the last signed head under `head`",
    DENIED_TOKENS: "under the hash of its id, each signed token that is accepted no more, until it expires",
    CHECKPOINTS: 'after the colon `["set","owner"]`: the tree under `tree`, each checkpoint under its id',
    NONCES: "after the colon the nonce: one value, expected to be absent, with a ttl, so it is spent exactly once",
    LEASES: "after the colon the lease's name: the holder, with a ttl that it renews",
    OAUTH_GRANTS: "after the colon the grant's id: its `record`, until the user has to sign in again",
    TASKS: "after the colon the task's id: its `record` and, when it has ended, its `outcome`, until its ttl is over",
    TASK_ACCOUNTS: "after the colon the hash of a principal: the `ledger` of the tasks that are kept for it",
}
