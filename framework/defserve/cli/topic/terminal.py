"""A person at a terminal in a topic: sees what happens, approves and declines proposals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from defserve.cli.topic.lines import EVENTS, describe, facts, short
from defserve.errors import PeerError, UsageError
from defserve.host.mcpx.participant import TopicClient
from defserve.protocols.mcpx.errors import NotCapable, ProposalNotPending
from defserve.protocols.mcpx.proposals import Proposal

COMMANDS: Final = """commands, one per line:
  y [N]             approve proposal N (without N, the oldest) and have it done
  n [N] [REASON]    decline it
  p                 show what is proposed
  who               show who is here
  say TEXT          say something to everyone
  q                 leave"""

FAILURES: Final = (NotCapable, ProposalNotPending, UsageError, PeerError)


class TopicTerminal:
    """What a person at a terminal sees and does. Proposals are numbered as they come; `show` formats a line."""

    def __init__(self, me: TopicClient, show: Callable[[dict[str, Any]], str]) -> None:
        self._me, self._show = me, show
        self._numbers: dict[str, int] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Print what happens, until the gateway leaves."""
        async for heard in self._me.heard():
            number = self._number(heard) if isinstance(heard, Proposal) else None
            self._print({"event": EVENTS[type(heard)], "text": describe(heard, number), **facts(heard)})

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
                self.say(f"not done: {error}")
        if self._work:
            await asyncio.wait(self._work)

    # -- verbs -------------------------------------------------------------------------------------------

    def approve(self, rest: str) -> None:
        task = asyncio.create_task(self._fulfil(self._chosen(rest)[0]))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def decline(self, rest: str) -> None:
        proposal, reason = self._chosen(rest)
        self._me.decline(proposal, reason)
        self.say(f"declined {self._number(proposal)}")

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

    async def _fulfil(self, proposal: Proposal) -> None:
        number = self._number(proposal)
        try:
            self.say(f"done {number}: {short(await self._me.fulfil(proposal))}")
        except FAILURES as error:
            self.say(f"not done {number}: {error}")

    def _chosen(self, rest: str) -> tuple[Proposal, str]:
        """The proposal that a command is about, and the rest of the line."""
        first, _, more = rest.partition(" ")
        found = self._me.proposals
        if not first.isdecimal():
            if not found:
                raise UsageError("nothing is proposed")
            return found[0], rest
        for proposal in found:
            if self._number(proposal) == int(first):
                return proposal, more.strip()
        raise UsageError(f"no proposal {first} waits for a decision")

    def _number(self, proposal: Proposal) -> int:
        return self._numbers.setdefault(proposal.id, len(self._numbers) + 1)

    def _print(self, line: dict[str, Any]) -> None:
        print(self._show(line), flush=True)


_VERBS: Final[dict[str, Callable[[TopicTerminal, str], None]]] = {
    "y": TopicTerminal.approve,
    "n": TopicTerminal.decline,
    "p": TopicTerminal.pending,
    "who": TopicTerminal.who,
    "say": TopicTerminal.chat,
}
