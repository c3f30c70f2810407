"""What a call has seen of states that are not proved. All that it keeps afterwards is not proved either.

That holds for the whole call that a peer makes: what one part of it reads, another may write, in any set. So no tool
makes a proved state of one that a caller brought, by whatever way it copies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from defserve.protocols.mcp.asking.marks import SEVERAL, find_mark, mark
from defserve.protocols.mcpl.current import DangerousTool

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.stores.checkpoints.store import HeldCheckpoint

MARK: Final = "mcpl.unproved"


def is_for_dangerous(call: Call | None) -> bool:
    """Whether a dangerous tool makes this call, itself or through others."""
    while call is not None:
        if call.peek(DangerousTool) is not None:
            return True
        call = call.outer
    return False


def note_reading(call: Call, held: HeldCheckpoint) -> None:
    """A call is about to see what is held. From then on it is known if that is not proved."""
    if not held.verified:
        mark(call, MARK, _name(held))


def with_proof_of(call: Call | None, held: HeldCheckpoint) -> HeldCheckpoint:
    """What is held, for a commit of this call: it is verified only if all is that the call has seen."""
    if call is None or not held.verified or find_mark(call, MARK) is None:
        return held
    return held._replace(verified=False)


def may_move_shared(call: Call | None, held: HeldCheckpoint) -> bool:
    """Whether a commit of this call may become the head of everyone's state.

    That is so if it is proved, or if the head is all that the call has seen of what is not: a store of version 0.1.0
    has such heads, and they go on.
    """
    seen = find_mark(call, MARK) if call is not None else None
    return seen is None or (seen != SEVERAL and held.is_head and seen == _name(held))


def _name(held: HeldCheckpoint) -> str:
    return f"{held.parent} {held.key.feature_set}" if held.parent is not None else SEVERAL
