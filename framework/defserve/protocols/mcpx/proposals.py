"""§3.2, §10.2: proposals: operations that a participant may not request itself. They expire after five minutes.

Rejecting and withdrawing follow MEW v0.4, §3.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from defserve.protocols.mcpx.envelope import Envelope
from defserve.protocols.mcpx.kinds import MessageKind, context_of, parse_kind
from defserve.wire.jsonvalue import is_object

LIFETIME: Final = 300.0
MOST_PROPOSALS: Final = 10_000
MOST_OF_ONE_PROPOSER: Final = 256
MOST_BYTES: Final = 8 * 1024 * 1024  # of one proposer
MOST_REJECTIONS: Final = 256  # of one proposal
LONGEST_REASON: Final = 1_000

Clock: TypeAlias = Callable[[], float]
Status: TypeAlias = Literal["pending", "fulfilled", "completed", "failed", "declined", "withdrawn", "expired"]


class Proposal:
    """One proposed operation. `fulfilled` means that somebody has asked for it, `completed` that it was answered.

    `result` is the answer's, `error` the JSON-RPC error object of a `failed` one; times are seconds since the epoch.
    `rejections` holds who rejected it and why; `reason` is why it was `declined` or `withdrawn`, if somebody said so.
    """

    __slots__ = (
        "id", "proposer", "to", "method", "params", "status", "created", "expires", "fulfiller", "result", "error",
        "size", "rejections", "reason",
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
    ) -> None:
        self.id, self.proposer, self.to = id, proposer, to
        self.method, self.params = method, dict(params)
        self.created, self.expires = created, created + lifetime
        self.status: Status = "pending"
        self.fulfiller: str | None = None
        self.result: Any = None
        self.error: dict[str, Any] | None = None
        self.size = 0
        self.rejections: dict[str, str] = {}
        self.reason = ""

    @property
    def target(self) -> str | None:
        """The participant that should do it; None unless the proposal names exactly one."""
        return self.to[0] if len(self.to) == 1 else None

    @property
    def context(self) -> str:
        """The tool's name, the resource's URI; empty for methods that have none."""
        return context_of(self.method, self.params)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a proposed tool call."""
        found = self.params.get("arguments")
        return dict(found) if is_object(found) else {}

    def wire(self) -> dict[str, Any]:
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

    def left(self, proposal: Proposal) -> float:
        """The seconds until a proposal expires."""
        return max(0.0, proposal.expires - self._clock())

    def add(self, envelope: Envelope) -> Proposal | None:
        """Follow a proposal; None for a known id. A participant with too many proposals loses its oldest."""
        self._sweep()
        if envelope.id in self._known:
            return None
        mine = [found for found in self._known.values() if found.proposer == envelope.sender]
        body = envelope.body
        size = len(to_json(body))
        while mine and (len(mine) >= MOST_OF_ONE_PROPOSER or sum(each.size for each in mine) + size > MOST_BYTES):
            self._forget(mine.pop(0))
        if len(self._known) >= MOST_PROPOSALS:
            self._forget(next(iter(self._known.values())))
        proposal = Proposal(
            envelope.id,
            envelope.sender,
            envelope.to,
            body["method"],
            body.get("params") or {},
            created=self._clock(),
            lifetime=self._lifetime,
        )
        proposal.size = size
        self._known[proposal.id] = proposal
        return proposal

    def fulfilled_by(self, request: Envelope) -> Proposal | None:
        """The proposal that a request fulfils: it refers to it and asks for the same operation."""
        proposal = self.get(request.correlation_id)
        if proposal is None or not is_about(parse_kind(request.kind), proposal):
            return None
        if proposal.status == "pending":
            proposal.status, proposal.fulfiller = "fulfilled", request.sender
        self._fulfilments[request.id] = proposal, request.to
        return proposal

    def answered_by(self, response: Envelope, me: str) -> Proposal | None:
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

    def not_fulfilled(self, request: str) -> None:
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
        if by in proposal.rejections or len(proposal.rejections) < MOST_REJECTIONS:
            proposal.rejections[by] = reason[:LONGEST_REASON]
        if not is_approver and not (proposal.to and proposal.rejections.keys() >= set(proposal.to)):
            return False
        proposal.status, proposal.reason = "declined", reason[:LONGEST_REASON]
        return True

    def withdraw(self, proposal: Proposal, reason: str) -> bool:
        """Its proposer no longer wants it; returns whether that ends it."""
        if proposal.status != "pending":
            return False
        proposal.status, proposal.reason = "withdrawn", reason[:LONGEST_REASON]
        return True

    def _outcome_of_mine(self, response: Envelope, me: str) -> Proposal | None:
        if me not in response.to:
            return None
        kind = parse_kind(response.kind)
        for proposal in self._known.values():
            is_mine = proposal.proposer == me and proposal.status == "pending"
            if is_mine and response.sender in proposal.to and is_about(kind, proposal):
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
            self._forget(proposal)

    def _forget(self, proposal: Proposal) -> None:
        del self._known[proposal.id]
        for id in [id for id, (about, _) in self._fulfilments.items() if about is proposal]:
            del self._fulfilments[id]


def is_about(kind: MessageKind | None, proposal: Proposal) -> bool:
    """Whether a kind names the operation of a proposal."""
    return kind is not None and kind.method == proposal.method and kind.context in ("", proposal.context)


def _instant(seconds: float) -> str:
    from defserve.wire.instants import instant_at

    return instant_at(seconds, "seconds")
