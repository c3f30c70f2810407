"""§3.2, §10.2: proposals: operations that a participant may not request itself. They expire after five minutes.

Rejecting and withdrawing follow MEW v0.4, §3.3. `ApprovalRules` (§9.4) decide for a person who has done so often.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from defserve.core.json_values import is_object
from defserve.core.shapes import is_number
from defserve.errors import UsageError, explain_arguments
from defserve.protocols.mcpx.envelope import Envelope, MessageKind, find_operation_context, parse_kind
from defserve.stores.files import replace_file

LIFETIME: Final = 300.0
MAX_PROPOSALS: Final = 10_000
MAX_PROPOSALS_PER_PROPOSER: Final = 256
MAX_BYTES_PER_PROPOSER: Final = 8 * 1024 * 1024  # of one proposer
MAX_REJECTIONS: Final = 256  # of one proposal
MAX_REASON_LENGTH: Final = 1_000
MAX_FORGOTTEN: Final = 10_000
MAX_FULFILMENTS: Final = 10_000  # requests that have not been answered, of all proposals

REQUEST_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "tools/call": frozenset({"name", "arguments"}),
    "prompts/get": frozenset({"name", "arguments"}),
    "resources/read": frozenset({"uri"}),
    "resources/subscribe": frozenset({"uri"}),
    "resources/unsubscribe": frozenset({"uri"}),
}
"""What somebody else may ask for in its own name. Other members would say something about who asks: a checkpoint, a
task, a state."""

Clock: TypeAlias = Callable[[], float]
ProposalStatus: TypeAlias = Literal["pending", "fulfilled", "completed", "failed", "declined", "withdrawn", "expired"]


class Proposal:
    """One proposed operation. `fulfilled` means that somebody has asked for it, `completed` that it was answered.

    `result` is the answer's, `error` the JSON-RPC error object of a `failed` one; times are seconds since the epoch.
    `rejections` holds who rejected it and why; `reason` is why it was `declined` or `withdrawn`, if somebody said so.
    `caller` is the id of its proposer with the gateway and the topic; empty if the gateway does not vouch for it.
    """

    __slots__ = (
        "id", "proposer", "to", "method", "params", "status", "created", "expires", "fulfiller", "result", "error",
        "size", "rejections", "reason", "caller", "_digest",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        proposer: str,
        to: tuple[str, ...],
        method: str,
        params: Mapping[str, Any],
        *,
        created: float,
        lifetime: float = LIFETIME,
        caller: str = "",
    ) -> None:
        self.id, self.proposer, self.to, self.caller = id, proposer, to, caller
        self.method, self.params = method, dict(params)
        self.created, self.expires = created, created + lifetime
        self.status: ProposalStatus = "pending"
        self.fulfiller: str | None = None
        self.result: Any = None
        self.error: dict[str, Any] | None = None
        self.size = 0
        self._digest = ""
        self.rejections: dict[str, str] = {}
        self.reason = ""

    @property
    def target(self) -> str | None:
        """The participant that should do it; None unless the proposal names exactly one."""
        return self.to[0] if len(self.to) == 1 else None

    @property
    def context(self) -> str:
        """The tool's name, the resource's URI; empty for methods that have none."""
        return find_operation_context(self.method, self.params)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a proposed tool call."""
        found = self.params.get("arguments")
        return dict(found) if is_object(found) else {}

    @property
    def digest(self) -> str:
        """Another for each content. A proposer chooses the id, so a yes to an id could be a yes to anything."""
        if not self._digest:
            content = [self.id, self.proposer, self.to, self.method, self.params, self.created]
            self._digest = sha256(to_json(content)).hexdigest()
        return self._digest

    def to_wire(self) -> dict[str, Any]:
        """The record as §10.2 writes it."""
        return {
            "proposalId": self.id,
            "proposer": self.proposer,
            "target": self.target,
            "method": self.method,
            "params": self.params,
            "status": self.status,
            "createdAt": _instant(self.created),
            "expiresAt": _instant(self.expires),
        }


class Proposals:
    """The proposals of a topic that have not expired. `clock` gives seconds since the epoch."""

    def __init__(self, *, clock: Clock = time.time, lifetime: float = LIFETIME) -> None:
        self._clock, self._lifetime = clock, lifetime
        self._known: dict[str, Proposal] = {}
        self._fulfilments: dict[str, tuple[Proposal, tuple[str, ...]]] = {}
        self._forgotten: dict[str, float] = {}
        """The ids of those that gave way before they expired, and when they would have."""

    def __iter__(self) -> Iterator[Proposal]:
        self._sweep()
        return iter(tuple(self._known.values()))

    def pending(self) -> list[Proposal]:
        """Those that wait for somebody, oldest first."""
        return [proposal for proposal in self if proposal.status == "pending"]

    def get(self, id: str | None) -> Proposal | None:
        """A proposal that has not expired."""
        self._sweep()
        return self._known.get(id) if id is not None else None

    def get_remaining_seconds(self, proposal: Proposal) -> float:
        """The seconds until a proposal expires."""
        return max(0.0, proposal.expires - self._clock())

    def is_current(self, proposal: Proposal) -> bool:
        """Whether this very proposal is followed, and not another one with its id."""
        return self.get(proposal.id) is proposal

    def add(self, envelope: Envelope, caller: str = "") -> Proposal | None:
        """Follow a proposal; None for an id that is or was known. A participant with too many loses its oldest."""
        self._sweep()
        if envelope.id in self._known or envelope.id in self._forgotten:
            return None
        mine = [found for found in self._known.values() if found.proposer == envelope.sender]
        body = envelope.body
        size = len(to_json(body))
        while mine and (
            len(mine) >= MAX_PROPOSALS_PER_PROPOSER or sum(each.size for each in mine) + size > MAX_BYTES_PER_PROPOSER
        ):
            self._give_way(mine.pop(0))
        if len(self._known) >= MAX_PROPOSALS:
            self._give_way(next(iter(self._known.values())))
        proposal = Proposal(
            envelope.id,
            envelope.sender,
            envelope.to,
            body["method"],
            body.get("params") or {},
            created=self._clock(),
            lifetime=self._lifetime,
            caller=caller,
        )
        proposal.size = size
        self._known[proposal.id] = proposal
        return proposal

    def record_fulfilment(self, request: Envelope) -> Proposal | None:
        """The proposal that a request fulfils: it refers to it and asks for the same operation."""
        proposal = self.get(request.correlation_id)
        if proposal is None or not is_about_proposal(parse_kind(request.kind), proposal):
            return None
        if proposal.status == "pending":
            proposal.status, proposal.fulfiller = "fulfilled", request.sender
        if len(self._fulfilments) >= MAX_FULFILMENTS:
            del self._fulfilments[next(iter(self._fulfilments))]
        self._fulfilments[request.id] = proposal, request.to
        return proposal

    def record_outcome(self, response: Envelope, me: str) -> Proposal | None:
        """The proposal whose outcome a response is.

        A proposer that did not see the fulfilment recognises the outcome by its sender, its receivers and its kind.
        """
        self._sweep()
        found = self._fulfilments.get(response.correlation_id or "")
        if found is not None:
            proposal, asked = found
            if asked and response.sender not in asked:
                return None
            del self._fulfilments[response.correlation_id or ""]
        elif (proposal := self._outcome_of_mine(response, me)) is None:
            return None
        body = response.body
        proposal.result, proposal.error = body.get("result"), body.get("error")
        proposal.status = "failed" if proposal.error is not None else "completed"
        return proposal

    def undo_fulfilment(self, request: str) -> None:
        """The request that should have fulfilled a proposal went nowhere. The proposal waits again."""
        found = self._fulfilments.pop(request, None)
        if found is not None and found[0].status == "fulfilled":
            found[0].status, found[0].fulfiller = "pending", None

    def reject(self, proposal: Proposal, by: str, reason: str, *, is_approver: bool) -> bool:
        """Somebody rejects a proposal; returns whether that ends it.

        It ends by the word of one who could fulfil it (`is_approver`), or of all whom it is addressed to. Anyone else's
        word is noted.
        """
        if proposal.status != "pending":
            return False
        if by in proposal.rejections or len(proposal.rejections) < MAX_REJECTIONS:
            proposal.rejections[by] = reason[:MAX_REASON_LENGTH]
        if not is_approver and not (proposal.to and proposal.rejections.keys() >= set(proposal.to)):
            return False
        proposal.status, proposal.reason = "declined", reason[:MAX_REASON_LENGTH]
        return True

    def withdraw(self, proposal: Proposal, reason: str) -> bool:
        """Its proposer no longer wants it; returns whether that ends it."""
        if proposal.status != "pending":
            return False
        proposal.status, proposal.reason = "withdrawn", reason[:MAX_REASON_LENGTH]
        return True

    def _outcome_of_mine(self, response: Envelope, me: str) -> Proposal | None:
        if me not in response.to:
            return None
        kind = parse_kind(response.kind)
        for proposal in self._known.values():
            is_mine = proposal.proposer == me and proposal.status == "pending"
            if is_mine and response.sender in proposal.to and is_about_proposal(kind, proposal):
                return proposal
        return None

    def _sweep(self) -> None:
        # They are in order and have the same lifetime, so we can stop at the first that is still valid.
        now = self._clock()
        for proposal in list(self._known.values()):
            if proposal.expires > now:
                break
            if proposal.status == "pending":
                proposal.status = "expired"
            self._drop_proposal(proposal)
        while self._forgotten and self._forgotten[id := next(iter(self._forgotten))] <= now:
            del self._forgotten[id]

    def _give_way(self, proposal: Proposal) -> None:
        if len(self._forgotten) >= MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[proposal.id] = proposal.expires
        self._drop_proposal(proposal)

    def _drop_proposal(self, proposal: Proposal) -> None:
        del self._known[proposal.id]
        for id in [id for id, (about, _) in self._fulfilments.items() if about is proposal]:
            del self._fulfilments[id]


def build_fulfilment_params(proposal: Proposal) -> dict[str, Any]:
    """The params of a request that does what is proposed. Whoever sends it sends it in its own name.

    `_meta` is left out: a proposer could confirm or grant something there in the name of who approves. Raises
    UsageError if the method knows other members than those of the proposal.
    """
    params = {name: value for name, value in proposal.params.items() if name != "_meta"}
    members = REQUEST_MEMBERS.get(proposal.method)
    if members is not None and (more := sorted(params.keys() - members)):
        named = ", ".join(repr(name[:40]) for name in more[:5])
        raise UsageError(
            f"the proposal has members beside {' and '.join(sorted(members))}: {named}; "
            "they would be sent in the name of who approves",
            fix="decline it, and have it proposed without them",
        )
    return params


def is_about_proposal(kind: MessageKind | None, proposal: Proposal) -> bool:
    """Whether a kind names the operation of a proposal."""
    return kind is not None and kind.method == proposal.method and kind.context in ("", proposal.context)


def _instant(seconds: float) -> str:
    from defserve.core.json_values import format_unix_timestamp

    return format_unix_timestamp(seconds, "seconds")


# -- §9.4: a person who has decided often enough is not asked again. Rules never go beyond what was approved.
#
# A rule is about one operation of one target, proposed by one participant of one topic for which its gateway vouches:
# anybody may have the name of a guest next. It covers three kinds of arguments: a path
# or URL below a folder that all approved ones share, a number between the smallest and the largest approved one, and a
# value that was itself approved. After one decline within those bounds, only exact repeats are approved.


RULES_FORMAT_VERSION: Final = 2
WITHOUT_CALLERS: Final = 1
"""The version that knew proposers by their bare names. Its decisions are read, and nothing follows from them."""
ENOUGH: Final = 3
MAX_DECISIONS: Final = 10_000
ARGUED: Final = frozenset(("tools/call", "prompts/get"))
"""Methods whose params are a name and its arguments."""
PLACE: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*+://[\w.:-]*+)?/?(?:[\w.@~+,=-]++/)*+[\w.@~+,=-]*+")
"""A plain path or URL. Nothing in it is read as something else: no `%2e`, no `?`, no `;`, no blank."""

Key: TypeAlias = tuple[str, str, str, str]
Arguments: TypeAlias = Mapping[str, Any]


class ApprovalDecision:
    """What a person said to one proposal."""

    __slots__ = ("approved", "proposer", "target", "method", "context", "params", "by", "at", "caller")

    def __init__(
        self,
        approved: bool,
        proposer: str,
        target: str,
        method: str,
        context: str,
        params: Arguments,
        *,
        by: str = "",
        at: float = 0.0,
        caller: str = "",
    ) -> None:
        self.approved, self.proposer, self.target = approved, proposer, target
        self.method, self.context, self.params = method, context, dict(params)
        self.by, self.at, self.caller = by, at, caller

    @property
    def key(self) -> Key:
        return self.caller, self.target, self.method, self.context

    @property
    def arguments(self) -> Arguments:
        return _arguments(self.method, self.params)

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class ArgumentBounds:
    """What one argument was in all approvals. `is_within_bounds` says whether a value lies within."""

    __slots__ = ("values", "prefix", "low", "high")

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.prefix = _find_common_folder(values) if all(isinstance(value, str) for value in values) else ""
        numbers = [value for value in values if is_number(value)]
        self.low, self.high = (min(numbers), max(numbers)) if len(numbers) == len(values) else (None, None)

    def is_within_bounds(self, value: Any) -> bool:
        if self.prefix and isinstance(value, str):
            return value.startswith(self.prefix) and _is_place(value)
        if self.low is not None and self.high is not None and is_number(value):
            return self.low <= value <= self.high
        return any(type(value) is type(seen) and value == seen for seen in self.values)

    def to_wire(self) -> Any:
        if self.prefix:
            return {"under": self.prefix}
        return {"from": self.low, "to": self.high} if self.low is not None else {"one_of": self.values}


class ApprovalRule:
    """Approvals of one operation, generalised. `literal`: a decline within the bounds showed that they are too wide."""

    __slots__ = ("key", "approvals", "bounds", "literal")

    def __init__(self, key: Key, approvals: list[Arguments], declines: list[Arguments]) -> None:
        self.key, self.approvals = key, approvals
        names = sorted(approvals[0])
        same = all(sorted(arguments) == names for arguments in approvals)
        self.bounds = {name: ArgumentBounds([given[name] for given in approvals]) for name in names} if same else None
        self.literal = self.bounds is None or any(map(self._within, declines))

    def covers(self, arguments: Arguments) -> bool:
        return _text(arguments) in map(_text, self.approvals) if self.literal else self._within(arguments)

    def _within(self, arguments: Arguments) -> bool:
        if self.bounds is None or set(arguments) != set(self.bounds):
            return False
        return all(self.bounds[name].is_within_bounds(value) for name, value in arguments.items())

    def to_wire(self) -> dict[str, Any]:
        caller, target, method, context = self.key
        about = {"caller": caller, "target": target, "method": method, "context": context}
        bounds = self.bounds if not self.literal else None
        within: Any = {name: bound.to_wire() for name, bound in bounds.items()} if bounds is not None else "as approved"
        return {**about, "approvals": len(self.approvals), "within": within}


@explain_arguments
class ApprovalRules:
    """Decisions of people, and what follows from them.

    `enough` approvals of an operation make a rule. If the same arguments were decided twice, the last decision counts.
    Tools that are dangerous, or may be, are never approved unless `dangerous` is True. What a guest proposes is never
    approved: `Proposal.caller` is empty then.
    """

    def __init__(
        self,
        decisions: Iterable[ApprovalDecision] = (),
        *,
        enough: int = ENOUGH,
        dangerous: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if enough < 1:
            raise UsageError(
                f"ApprovalRules(enough={enough}) is not possible", fix="at least one decision must come from a person"
            )
        self.enough, self.dangerous, self._clock = enough, dangerous, clock
        self.decisions = list(decisions)

    def record(self, proposal: Proposal, approved: bool, *, by: str = "", target: str | None = None) -> None:
        """Record a person's decision. `target` is the participant that was asked, if the proposal does not name it."""
        decision = ApprovalDecision(
            approved,
            proposal.proposer,
            target or proposal.target or "",
            proposal.method,
            proposal.context,
            proposal.params,
            by=by,
            at=self._clock(),
            caller=proposal.caller,
        )
        self.decisions = [*self.decisions[-MAX_DECISIONS + 1 :], decision]

    def approves(self, proposal: Proposal, tool: Mapping[str, Any] | None = None) -> bool:
        """Whether a person need not be asked. `tool` is the entry of the target's `tools/list`, for a tool call."""
        if proposal.method == "tools/call" and not self.dangerous and (tool is None or is_dangerous(tool)):
            return False
        rule = self._rule((proposal.caller, proposal.target or "", proposal.method, proposal.context))
        return rule is not None and rule.covers(_arguments(proposal.method, proposal.params))

    @property
    def rules(self) -> list[ApprovalRule]:
        """What has been decided often enough."""
        keys = dict.fromkeys(decision.key for decision in self.decisions)
        return [rule for key in keys if (rule := self._rule(key)) is not None]

    def _rule(self, key: Key) -> ApprovalRule | None:
        if not key[0]:
            return None
        mine = [decision for decision in self.decisions if decision.key == key]
        last_word = {_text(decision.arguments): decision.approved for decision in mine}
        approvals = [d.arguments for d in mine if d.approved and last_word[_text(d.arguments)]]
        declines = [d.arguments for d in mine if not last_word[_text(d.arguments)]]
        return ApprovalRule(key, approvals, declines) if len(approvals) >= self.enough else None

    # -- saving and loading ------------------------------------------------------------------------------

    def export(self) -> str:
        """The decisions as JSON, with the rules that follow from them for people to read."""
        body = {
            "version": RULES_FORMAT_VERSION,
            "decisions": [decision.to_wire() for decision in self.decisions],
            "rules": [rule.to_wire() for rule in self.rules],
        }
        return json.dumps(body, indent=2, ensure_ascii=False)

    @classmethod
    def load(cls, text: str, *, enough: int = ENOUGH, dangerous: bool = False) -> ApprovalRules:
        """Read what `export` wrote. Rules are derived from the decisions again. Raises UsageError for anything else."""
        try:
            body = json.loads(text)
            if body["version"] not in (RULES_FORMAT_VERSION, WITHOUT_CALLERS):
                raise ValueError(f"version {body['version']!r}")
            decisions = [_decision(found) for found in body["decisions"]]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"this is not an export of approval rules: {error!r}", fix="give what ApprovalRules.export wrote"
            ) from None
        return cls(decisions, enough=enough, dangerous=dangerous)

    def save(self, path: str | Path) -> None:
        """Write `export()` to a file, replacing what it holds."""
        # A name of the operating system may hold a lone surrogate, which JSON writes like this too.
        replace_file(Path(path), self.export().encode(errors="backslashreplace"))


def is_dangerous(tool: Mapping[str, Any]) -> bool:
    """Whether a listed tool says that it can destroy something (MCP's annotations, MGP's security)."""
    annotations, security = tool.get("annotations"), tool.get("security")
    is_marked = is_object(security) and security.get("risk_level") == "dangerous"
    return is_marked or (is_object(annotations) and annotations.get("destructiveHint") is True)


def _decision(found: Any) -> ApprovalDecision:
    approved, params = found["approved"], found["params"]
    proposer, target, method, context = texts = [found[name] for name in ("proposer", "target", "method", "context")]
    caller = found.get("caller", "")
    if not isinstance(approved, bool) or not is_object(params) or not all(isinstance(t, str) for t in (*texts, caller)):
        raise ValueError("a decision with fields of other types")
    return ApprovalDecision(
        approved,
        proposer,
        target,
        method,
        context,
        params,
        by=str(found.get("by", "")),
        at=float(found.get("at", 0)),
        caller=caller,
    )


def _arguments(method: str, params: Arguments) -> Arguments:
    """The values that bounds apply to: the arguments of a tool call or prompt, otherwise all of the params."""
    given = {name: value for name, value in params.items() if name != "_meta"}
    found = given.get("arguments")
    is_argued = method in ARGUED and given.keys() <= {"name", "arguments"}
    return found if is_argued and is_object(found) else given


def _text(arguments: Arguments) -> str:
    return json.dumps(arguments, sort_keys=True)


def _find_common_folder(texts: list[str]) -> str:
    """The longest beginning of different paths or URLs that ends with a slash and is more than the root."""
    import os

    if len(set(texts)) < 2 or not all(map(_is_place, texts)):
        return ""
    shared = os.path.commonprefix(texts)  # noqa: RUF071  cut at a slash in the next line
    folder = shared[: shared.rfind("/") + 1]
    return folder if folder.strip("/.") and not folder.endswith("://") else ""


def _is_place(text: str) -> bool:
    """Whether a text is a plain path or URL that does not lead out of its folder."""
    return PLACE.fullmatch(text) is not None and not {".", ".."} & {*text.split("/")[1:]}
