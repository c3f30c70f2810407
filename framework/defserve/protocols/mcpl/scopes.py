"""MCPL §7: scopes, which say where a scoped tool may act.

The label of a call is computed from its arguments and matched against the host's lists, the blacklist first. What is on
neither list runs only if the host or its user approves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json, to_jsonable_python

from defserve.auth.authority import AUTHENTICATION_HINT
from defserve.base.hidden_characters import is_printable_line
from defserve.base.peer_bounds import cache_short_texts
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.protocols.mcp.asking import client_requests
from defserve.protocols.mcpl.policies import (
    FeaturePolicy,
    ScopeLists,
    get_feature_policy,
    get_mcpl_terms,
    get_mcpl_vocabulary,
    is_anonymous_session,
    is_stateless_call,
)
from defserve.protocols.mcpl.vocabulary import ScopeDenied

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section import FeatureSetBase


MAX_LABEL_LENGTH = 1_024


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a tool acts: a label for people and patterns, and data that travels with it."""

    label: str
    payload: Mapping[str, Any] | None = None

    def to_wire(self) -> Params:
        """The scope for the wire (§7)."""
        return {"label": self.label} | ({"payload": dict(self.payload)} if self.payload else {})


class GrantedScope:
    """The scope that a call was granted."""

    scope: Scope | None = None


def find_label_permission(lists: ScopeLists, label: str) -> bool | None:
    """Whether a label, in its normal form, is allowed (True) or forbidden (False); None if it is on neither list."""
    # What is forbidden inside a directory is forbidden for the directory, which contains it.
    if any(glob(pattern).is_match(label) or glob(pattern).is_match(f"{label}/") for pattern in lists.blacklist):
        return False
    return True if any(glob(pattern).is_match(label) for pattern in lists.whitelist) else None


def normalize_label(label: str) -> str:
    """A label without the `.`, `..` and empty segments of a path, so that patterns cannot be bypassed.

    Links of a file system are not followed: a tool that opens files must guard its paths as well.
    """
    scheme, separator, path = label.partition("://")
    if "/" in scheme or not separator:
        scheme, separator, path = "", "", label
    if "/" not in path and path not in (".", ".."):
        return label
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif segment not in ("", ".") and not (segment == ".." and path.startswith("/")):
            kept.append(segment)
    return scheme + separator + ("/" if path.startswith("/") else "") + "/".join(kept)


# -- MCPL §7: scopes. A scoped tool runs if the host's lists allow its label, and asks the host if they do not say.
#
# The lists are matched against the *resolved* label, the blacklist first. For a label on neither list the host is asked
# with `scope/elevate`; if it cannot be called back, the user is asked. A host without MCPL, or of 0.5, which has no
# scopes, has no lists: its scoped tools run like all others. A stranger can approve nothing, so no scoped tool runs for
# it.


MAX_REASON_LENGTH = 500
MAX_APPROVALS = 1_000


class ToolScopeCheck:
    """Checks the calls of one scoped tool. `function` returns the label of a call, from the arguments it `takes`."""

    __slots__ = ("feature_set", "function", "takes")

    def __init__(self, feature_set: FeatureSetBase, function: Callable[..., Any]) -> None:
        self.feature_set, self.function = feature_set, function
        self.takes: Mapping[str, Any] = {}

    def bind_tool(self, tool: Any) -> None:
        """Note which arguments the function takes. Raises UsageError for one that the tool does not have."""
        known = {parameter.name: parameter.default for parameter in tool.function.signature.parameters}
        wanted = inspect.signature(self.function).parameters
        for name in wanted:
            if name not in known:
                raise UsageError(
                    f"the scope of {tool.name!r} takes {name!r}, which the tool does not",
                    where=tool.where,
                    fix=f"take some of {', '.join(known) or 'nothing'}",
                )
        self.takes = {name: known[name] for name in wanted}

    async def require_scope(self, call: Call, arguments: Mapping[str, Any]) -> None:
        """Let a call pass, and set its `ctx.scope`. Raises ScopeDenied."""
        scope, tag = self._resolve_scope(arguments), call.params.get("scope")
        if is_anonymous_session(call.session):
            raise self._make_denial(
                scope.label, f"the caller is not authenticated, so it can approve nothing: {AUTHENTICATION_HINT}"
            )
        if get_mcpl_terms(call.terms) is not None and get_mcpl_vocabulary(call).scopes:
            if is_object(tag) and normalize_label(str(tag.get("label"))) != scope.label:
                raise self._make_denial(scope.label, "the call was made for another scope")
            payload = tag.get("payload") if is_object(tag) else None
            if is_object(payload):
                scope = Scope(scope.label, self._fitting(arguments, scope, payload))
            if not self._is_whitelisted(get_feature_policy(call), scope.label):
                scope = await self._elevate_scope(call, arguments, scope)
        call.local(GrantedScope).scope = scope

    def _is_whitelisted(self, found: FeaturePolicy, label: str) -> bool:
        """Whether the whitelist covers a label. Raises ScopeDenied if the blacklist does."""
        allowed = find_label_permission(found.find_scope_lists(self.feature_set.name), label)
        if allowed is False:
            raise self._make_denial(label, "the host forbids it")
        return allowed is True

    async def _elevate_scope(self, call: Call, arguments: Mapping[str, Any], scope: Scope) -> Scope:
        """The scope as the host approves it, perhaps with more in its payload."""
        name, found = self.feature_set.name, get_feature_policy(call)
        # Approved for the credential that asked, not for others that use the session.
        caller = call.identity.credential if call.identity is not None else ""
        key, revision = (name, scope.label, _digest(scope), caller), found.revision
        if (payload := found.approved.get(key)) is not None:
            return Scope(scope.label, payload | dict(scope.payload or {}))
        answer = await (
            _confirm_with_user(call, name, scope) if is_stateless_call(call) else _ask_host(call, name, scope)
        )
        if answer.get("approved") is not True:
            reason = answer.get("reason")
            raise self._make_denial(
                scope.label, reason[:MAX_REASON_LENGTH] if isinstance(reason, str) else "the host did not approve"
            )
        payload = answer.get("payload")
        approved = Scope(scope.label, self._fitting(arguments, scope, payload) if is_object(payload) else scope.payload)
        # The host may have changed its policy before it answered.
        self.feature_set.require_enabled(call)
        if found.revision != revision:
            self._is_whitelisted(get_feature_policy(call), scope.label)
        elif len(found.approved) < MAX_APPROVALS:
            sent, given = scope.payload or {}, approved.payload or {}
            found.approved[key] = {member: value for member, value in given.items() if member not in sent}
        return approved

    def _resolve_scope(self, arguments: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Scope:
        """The scope of a call with these arguments. Raises ScopeDenied for a label that cannot be judged."""
        taken = {name: arguments.get(name, default) for name, default in self.takes.items()} | dict(more or {})
        found = self.function(**taken)
        if isinstance(found, str):
            found = Scope(found, taken)
        if not isinstance(found, Scope):
            raise UsageError(f"a scope function gave {found!r:.80}", fix="return a str or Scope(label, payload)")
        label = normalize_label(found.label)
        if not label or len(label) > MAX_LABEL_LENGTH or not is_printable_line(label):
            raise self._make_denial(ascii(label[:80]), "a scope is one line of printable text, and not too long")
        return Scope(label, to_jsonable_python(dict(found.payload), fallback=str) if found.payload else None)

    def _fitting(self, arguments: Mapping[str, Any], scope: Scope, payload: Params) -> Params:
        """A host's payload, checked against the label it is for: the host may add to it, not change it.

        An added member with the name of a scope argument must lead to the same label.
        """
        sent = dict(scope.payload or {})
        added = {name: value for name, value in payload.items() if name in self.takes and name not in sent}
        changed = any(payload.get(member, value) != value for member, value in sent.items())
        if changed or (added and not self._same_label(arguments, scope, added)):
            raise self._make_denial(scope.label, "the payload of the host does not fit it")
        return sent | payload

    def _same_label(self, arguments: Mapping[str, Any], scope: Scope, added: Params) -> bool:
        try:
            return self._resolve_scope(arguments, added).label == scope.label
        except Exception:
            return False  # the host's data does not even have the form of the argument

    def _make_denial(self, label: str, reason: str) -> ScopeDenied:
        return ScopeDenied(self.feature_set.name, label, reason)


# -- asking --------------------------------------------------------------------------------------------
async def _ask_host(call: Call, name: str, scope: Scope) -> Params:
    try:
        answer = await call.request("scope/elevate", {"featureSet": name, "scope": scope.to_wire()})
    except PeerGone:
        raise
    except PeerError as error:
        return {"approved": False, "reason": f"the host could not be asked ({error.message})"}
    return answer if is_object(answer) else {}


async def _confirm_with_user(call: Call, name: str, scope: Scope) -> Params:
    if not client_requests.can_ask_client(call, "elicitation"):
        return {"approved": False, "reason": "it is not among the host's scopes, and nobody can be asked"}
    message = f"Allow {call.subject.name} ({name}) to act on {scope.label}?"
    approved = await client_requests.ask_confirmation(call, message, key=f"scope {name} {scope.label}")
    return {"approved": approved, "reason": "the user did not approve"}


def _digest(scope: Scope) -> bytes:
    """An approval holds for one payload, not for others under the same label."""
    from hashlib import sha256

    return sha256(to_json(dict(scope.payload or {}))).digest()


# -- Globs over labels. The time grows with label and pattern alone: no pattern of a host can stall a server.
#
# `*` matches any characters except `/`, `**` any at all, `?` one that is not `/`. At the start of a segment, `**/` also
# matches nothing, so that `**/.env` covers `.env`. Every other character matches itself.


# Several `**/` in a row mean the same as one.
TOKENS = re.compile(r"(?:^|(?<=/))(?:\*\*+/)+|\*+|[\s\S]")


class Glob:
    """One pattern as an automaton whose states are the bits of a number: bit `n` is "n tokens have been matched"."""

    __slots__ = ("_literals", "_one", "_within", "_across", "_gates", "_end")

    def __init__(self, pattern: str) -> None:
        self._literals: dict[str, int] = {}
        # The states of `?`, of `*`, of `**`, and those before a `**/` that may be left out.
        self._one = self._within = self._across = self._gates = 0
        bit = 1
        for token in TOKENS.findall(pattern):
            if token.endswith("*/"):
                self._gates |= bit
                self._across |= bit << 1
                self._literals["/"] = self._literals.get("/", 0) | bit << 2
                bit <<= 2
            elif token[0] == "*":
                self._within |= bit if token == "*" else 0
                self._across |= bit if token != "*" else 0
            elif token == "?":
                self._one |= bit
            else:
                self._literals[token] = self._literals.get(token, 0) | bit
            bit <<= 1
        self._end = bit

    def is_match(self, label: str) -> bool:
        """Whether the pattern covers the whole label."""
        states = self._expand_states(1)
        for character in label:
            apart = character == "/"
            moving = self._literals.get(character, 0) | (0 if apart else self._one)
            staying = self._across | (0 if apart else self._within)
            states = self._expand_states((states & moving) << 1 | states & staying)
            if not states:
                return False
        return bool(states & self._end)

    def _expand_states(self, states: int) -> int:
        """The states, and those that they reach without a character."""
        while True:
            gates = states & self._gates
            more = states | (states & (self._within | self._across)) << 1 | gates << 1 | gates << 3
            if more == states:
                return states
            states = more


glob = cache_short_texts(1_024)(Glob)
"""The automaton of a pattern, cached."""
