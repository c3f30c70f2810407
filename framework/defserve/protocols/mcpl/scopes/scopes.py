"""MCPL §7: scopes. A scoped tool runs where the host's lists let it, and asks the host where they say nothing.

The lists are matched against the *resolved* label, the blacklist first. Who is on neither list is asked for with
`scope/elevate`, or, where the host cannot be called back, with a question to the person behind it. A host that knows
nothing of MCPL has no lists: there the tool runs, as every other tool does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from defserve.core.call import Call
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.protocols.mcp.asking import client_requests
from defserve.protocols.mcpl.errors import ScopeDenied
from defserve.protocols.mcpl.feature_sets import Tie
from defserve.protocols.mcpl.policies import Policy, Scoping, is_stateless, live, policy, require
from defserve.protocols.mcpl.scopes.globs import glob
from defserve.protocols.mcpl.section import Section
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

LONGEST_LABEL = 1_024
LONGEST_REASON = 500
MOST_APPROVALS = 1_000


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a tool acts: a label that people read and patterns match, and data that travels with it."""

    label: str
    payload: Mapping[str, Any] | None = None

    def wire(self) -> Params:
        """As a host is told (§7)."""
        return {"label": self.label} | ({"payload": dict(self.payload)} if self.payload else {})


class Granted:
    """The scope that a call has."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope: Scope | None = None


class Scopes(Section):
    """Checks scoped tools before they run."""

    def read(self, tie: Tie, tool: Any) -> None:
        """Note which arguments a tool's `scope` takes. Raises UsageError for one that the tool does not have."""
        assert tie.scope is not None
        known = {parameter.name: parameter.default for parameter in tool.function.signature.parameters}
        wanted = inspect.signature(tie.scope).parameters
        for name in wanted:
            if name not in known:
                raise UsageError(
                    f"the scope of {tool.name!r} takes {name!r}, which the tool does not",
                    where=tool.where,
                    fix=f"take some of {', '.join(known) or 'nothing'}",
                )
        tie.takes = {name: known[name] for name in wanted}

    async def check(self, call: Call, tie: Tie, arguments: Mapping[str, Any]) -> None:
        """Let a call pass, then with `ctx.scope`, or raise ScopeDenied."""
        name = tie.feature_set.name
        scope = _resolved(tie, arguments)
        tag = call.params.get("scope")
        if live(call) is not None:
            if is_object(tag) and normal(str(tag.get("label"))) != scope.label:
                raise ScopeDenied(name, scope.label, "the call was made for another scope")
            payload = tag.get("payload") if is_object(tag) else None
            if is_object(payload):
                scope = Scope(scope.label, _fitting(tie, arguments, scope, payload))
            if not _covered(policy(call), name, scope.label):
                scope = await self._elevated(call, tie, arguments, scope)
        call.local(Granted).scope = scope

    async def _elevated(self, call: Call, tie: Tie, arguments: Mapping[str, Any], scope: Scope) -> Scope:
        """The scope as the host approves it, perhaps with more in its payload."""
        name, found = tie.feature_set.name, policy(call)
        key, revision = (name, scope.label, _digest(scope)), found.revision
        payload = found.approved.get(key)
        if payload is not None:
            return Scope(scope.label, payload | dict(scope.payload or {}))
        answer = await (_confirmed(call, name, scope) if is_stateless(call) else _asked(call, name, scope))
        if answer.get("approved") is not True:
            reason = answer.get("reason")
            raise ScopeDenied(
                name, scope.label, reason[:LONGEST_REASON] if isinstance(reason, str) else "the host did not approve"
            )
        payload = answer.get("payload")
        approved = Scope(scope.label, _fitting(tie, arguments, scope, payload) if is_object(payload) else scope.payload)
        # The host may have changed its mind while it was asked.
        require(call, tie.feature_set)
        if found.revision != revision:
            _covered(policy(call), name, scope.label)
        elif len(found.approved) < MOST_APPROVALS:
            sent = scope.payload or {}
            more = {member: value for member, value in (approved.payload or {}).items() if member not in sent}
            found.approved[key] = more
        return approved


# -- deciding --------------------------------------------------------------------------------------------


def _covered(found: Policy, name: str, label: str) -> bool:
    """Whether the whitelist covers a label; raises ScopeDenied where the blacklist does."""
    allowed = listed(found.scoping(name), label)
    if allowed is False:
        raise ScopeDenied(name, label, "the host forbids it")
    return allowed is True


def listed(lists: Scoping, label: str) -> bool | None:
    """Whether a label, in its normal form, is allowed (True) or forbidden (False); None where it is on neither list."""
    # What is denied below a directory is denied of the directory: it holds what was meant.
    if any(glob(pattern).matches(label) or glob(pattern).matches(f"{label}/") for pattern in lists.blacklist):
        return False
    return True if any(glob(pattern).matches(label) for pattern in lists.whitelist) else None


async def _asked(call: Call, name: str, scope: Scope) -> Params:
    try:
        answer = await call.request("scope/elevate", {"featureSet": name, "scope": scope.wire()})
    except PeerGone:
        raise
    except PeerError as error:
        return {"approved": False, "reason": f"the host could not be asked ({error.message})"}
    return answer if is_object(answer) else {}


async def _confirmed(call: Call, name: str, scope: Scope) -> Params:
    if not client_requests.can(call, "elicitation"):
        return {"approved": False, "reason": "it is not among the host's scopes, and nobody can be asked"}
    message = f"Allow {call.subject.name} ({name}) to act on {scope.label}?"
    approved = await client_requests.confirm(call, message, key=f"scope {name} {scope.label}")
    return {"approved": approved, "reason": "the user did not approve"}


def _digest(scope: Scope) -> bytes:
    """What was approved for one payload was not approved for another under the same label."""
    from hashlib import sha256

    return sha256(to_json(dict(scope.payload or {}))).digest()


# -- labels ----------------------------------------------------------------------------------------------


def _resolved(tie: Tie, arguments: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Scope:
    """The scope of a call with these arguments. Raises ScopeDenied for a label that cannot be judged."""
    assert tie.scope is not None
    taken = {name: arguments.get(name, default) for name, default in tie.takes.items()} | dict(more or {})
    found = tie.scope(**taken)
    if isinstance(found, str):
        found = Scope(found, taken)
    if not isinstance(found, Scope):
        raise UsageError(f"a scope function gave {found!r:.80}", fix="return a str or Scope(label, payload)")
    label = normal(found.label)
    if not label or len(label) > LONGEST_LABEL or not label.isprintable():
        name = tie.feature_set.name
        raise ScopeDenied(name, ascii(label[:80]), "a scope is a line of text that can be shown, and not too long")
    return Scope(label, to_jsonable_python(dict(found.payload), fallback=str) if found.payload else None)


def normal(label: str) -> str:
    """A label that reads like a path without its `.`, `..` and empty segments, so that a pattern means what it says.

    Links of a file system are not followed: a tool that opens files guards its paths as well.
    """
    scheme, separator, path = label.partition("://")
    if not separator:
        scheme, path = "", label
    if "/" not in path and path not in (".", ".."):
        return label
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif segment not in ("", ".") and not (segment == ".." and path.startswith("/")):
            kept.append(segment)
    return scheme + separator + ("/" if path.startswith("/") else "") + "/".join(kept)


def _fitting(tie: Tie, arguments: Mapping[str, Any], scope: Scope, payload: Params) -> Params:
    """What a host made of a payload, checked against the label it is for: it may add to it, not change it.

    An added member that is named like an argument of the scope must lead to the same label.
    """
    sent = dict(scope.payload or {})
    added = {name: value for name, value in payload.items() if name in tie.takes and name not in sent}
    changed = any(payload.get(member, value) != value for member, value in sent.items())
    if changed or (added and not _same_label(tie, arguments, scope, added)):
        raise ScopeDenied(tie.feature_set.name, scope.label, "what the host sent along does not fit it")
    return sent | payload


def _same_label(tie: Tie, arguments: Mapping[str, Any], scope: Scope, added: Params) -> bool:
    try:
        return _resolved(tie, arguments, added).label == scope.label
    except Exception:
        return False  # the host's data has not even the form of the argument
