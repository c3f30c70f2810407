"""A person at a terminal in a topic: sees what happens, approves, rejects, proposes and withdraws."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from defserve.base.background import BackgroundTasks
from defserve.cli.topic.lines import EVENTS, describe, facts, short
from defserve.errors import PeerError, UsageError
from defserve.host.mcpx.participant import TopicClient
from defserve.protocols.mcpx.errors import NotCapable, NotPresent, ProposalNotPending
from defserve.protocols.mcpx.kinds import REQUEST, kind_of
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import Heard, ProposalRejected, ProposalWithdrawn
from defserve.wire.jsonvalue import is_object

COMMANDS: Final = """commands, one per line:
  y [N] [NAME]         approve proposal N (without N, the oldest) and have it done, by NAME if you say who
  n [N] [REASON]       reject it; its proposer is told
  did N TEXT           you have done it yourself: its proposer gets TEXT as the result
  p                    show what is proposed
  do NAME TOOL [JSON]  call a tool of NAME with these arguments, or propose it if you may not
  w [N]                withdraw a proposal of yours
  who                  show who is here
  say TEXT             say something to everyone
  q                    leave"""

FAILURES: Final = (NotCapable, ProposalNotPending, UsageError, PeerError)


class TopicTerminal:
    """What a person at a terminal sees and does. Proposals are numbered as they come; `show` formats a line."""

    def __init__(self, me: TopicClient, show: Callable[[dict[str, Any]], str]) -> None:
        self._me, self._show = me, show
        self._numbers: dict[str, int] = {}
        self._work = BackgroundTasks()

    async def watch(self) -> None:
        """Print what happens, until the gateway leaves."""
        async for heard in self._me.heard():
            text = describe(heard, self._number_of(heard))
            self._print({"event": EVENTS[type(heard)], "text": text, **facts(heard)})

    async def obey(self, lines: AsyncIterator[str]) -> None:
        """Carry out the commands in `lines` until they end or one is `q`. Then wait for approved work to finish."""
        async for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word == "q":
                break
            if word not in _VERBS:
                self.say(COMMANDS if word else "")
                continue
            try:
                _VERBS[word](self, rest.strip())
            except FAILURES as error:
                self.say(f"not done: {_reason(error)}")
        if self._work:
            await asyncio.wait(self._work)

    # -- verbs -------------------------------------------------------------------------------------------

    def approve(self, rest: str) -> None:
        proposal, name = self._chosen(rest)
        self._work.start(self._fulfil(proposal, name))

    def reject(self, rest: str) -> None:
        proposal, reason = self._chosen(rest)
        self._me.decline(proposal, reason)
        self.say(f"rejected {self._number(proposal)}")

    def answer(self, rest: str) -> None:
        proposal, text = self._chosen(rest)
        self._me.answer(proposal, {"content": [{"type": "text", "text": text}]})
        self.say(f"answered {self._number(proposal)}")

    def withdraw(self, rest: str) -> None:
        proposal, _ = self._chosen(rest, of=self._me.id)
        self._me.withdraw(proposal)
        self.say(f"withdrew {self._number(proposal)}")

    def perform(self, rest: str) -> None:
        name, _, more = rest.partition(" ")
        tool, _, text = more.strip().partition(" ")
        if not tool:
            raise UsageError("say whom to ask for which tool", fix='do NAME TOOL {"a": 1}')
        params = {"name": tool, "arguments": _arguments(text)}
        if self._me.may(kind_of(REQUEST, "tools/call", params)):
            self._work.start(self._tell(tool, self._me.request(name, "tools/call", params)))
            return
        if name not in self._me.participants:
            raise NotPresent(name, self._me.participants)
        proposal = self._me.propose(name, "tools/call", params)
        self.say(describe(proposal, self._number(proposal)))
        self._work.start(self._tell(f"{self._number(proposal)}", self._me.outcome(proposal)))

    def pending(self, rest: str = "") -> None:
        for proposal in self._me.proposals:
            self.say(describe(proposal, self._number(proposal)))

    def who(self, rest: str = "") -> None:
        for name, held in self._me.participants.items():
            self.say(f"{name} is here: {', '.join(held.patterns)}")

    def chat(self, rest: str) -> None:
        self._me.chat(rest)

    def say(self, text: str) -> None:
        """Print a note of our own: it is not something that happened in the topic."""
        if text:
            self._print({"event": "note", "text": text})

    async def _fulfil(self, proposal: Proposal, name: str) -> None:
        number = self._number(proposal)
        target = name or proposal.target
        if target is None:
            found = await self._me.candidates(proposal)
            if len(found) != 1:
                who = f"these can do it: {', '.join(found)}" if found else "nobody here can do it"
                self.say(f"not done {number}: it names nobody to do it, and {who}; type y {number} NAME")
                return
            target = found[0]
            self.say(f"{target} does {number}")
        await self._tell(f"{number}", self._me.fulfil(proposal, to=target))

    async def _tell(self, what: str, work: Awaitable[Any]) -> None:
        try:
            self.say(f"done {what}: {short(await work)}")
        except FAILURES as error:
            self.say(f"not done {what}: {_reason(error)}")

    def _chosen(self, rest: str, of: str | None = None) -> tuple[Proposal, str]:
        """The proposal that a command is about, and the rest of the line. `of` counts only those of one proposer."""
        first, _, more = rest.partition(" ")
        found = [proposal for proposal in self._me.proposals if of in (None, proposal.proposer)]
        if not first.isdecimal():
            if not found:
                raise UsageError("nothing is proposed", fix="wait for a proposal; `p` shows those that there are")
            return found[0], rest
        for proposal in found:
            if self._number(proposal) == int(first):
                return proposal, more.strip()
        raise UsageError(f"no proposal {first} waits for a decision", fix="`p` shows those that do")

    def _number_of(self, heard: Heard) -> int | None:
        if isinstance(heard, ProposalRejected | ProposalWithdrawn):
            return self._number(heard.proposal)
        return self._number(heard) if isinstance(heard, Proposal) else None

    def _number(self, proposal: Proposal) -> int:
        return self._numbers.setdefault(proposal.id, len(self._numbers) + 1)

    def _print(self, line: dict[str, Any]) -> None:
        print(self._show(line), flush=True)


_VERBS: Final[dict[str, Callable[[TopicTerminal, str], None]]] = {
    "y": TopicTerminal.approve,
    "n": TopicTerminal.reject,
    "did": TopicTerminal.answer,
    "p": TopicTerminal.pending,
    "do": TopicTerminal.perform,
    "w": TopicTerminal.withdraw,
    "who": TopicTerminal.who,
    "say": TopicTerminal.chat,
}


def _reason(error: Exception) -> str:
    """An error in one line, as all that is shown here."""
    return f"{error.problem}; {error.fix}" if isinstance(error, UsageError) else str(error)


def _arguments(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UsageError(f"the arguments are not JSON: {error}", fix='write them as {"a": 1}') from None
    if not is_object(found):
        raise UsageError("the arguments are not a JSON object", fix='write them as {"a": 1}')
    return found
