"""Who operates a kernel: the local user, and the verified principals that `[kernel] admins` names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from defserve.auth.authority import is_local, is_stranger
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp.errors import PermissionDenied

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.call import Call


def is_operator(caller: Principal, admins: Collection[str]) -> bool:
    return is_local(caller) or (not is_stranger(caller) and caller.id in admins)


def check_operator(call: Call, admins: Collection[str]) -> Principal:
    """Who calls. Raises PermissionDenied for a caller who is no operator."""
    caller = identity(call)
    if not is_operator(caller, admins):
        raise PermissionDenied(f"{caller.id} may not operate the servers of this kernel")
    return caller
