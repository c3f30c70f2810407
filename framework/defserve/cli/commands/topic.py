"""`defserve topic`: a person at a terminal in a topic sees what happens and decides what becomes of proposals.

`TopicTerminal` shows what happens and carries out typed commands. What other participants wrote is only data: it is
made safe where it is printed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TextIO

from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import escape_unprintable
from defserve.cli.parser import JSON_LINES_FLAG, CommandArgument, CommandParser, make_flag, parse_token
from defserve.client.topic_client import ProposalText, TopicClient, join_topic, make_topic_address
from defserve.core.json_values import is_object
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from defserve.protocols.mcpx.envelope import REQUEST_KIND, make_message_kind
from defserve.protocols.mcpx.participant import NotCapable, NotPresent, ProposalNotPending
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import (
    Chat,
    GatewayRefusal,
    Presence,
    ProposalRejected,
    ProposalWithdrawn,
    SpoofedMessage,
    TopicEvent,
    TopicRequest,
    TopicResponse,
    Welcome,
)

EXAMPLES: Final = """  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token
  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token --watch --json
"""


def main(argv: list[str]) -> int:
    about = f"Watch a topic live, and approve or reject what is proposed in it.\n\n{COMMANDS}"
    options = CommandParser("defserve topic", about, EXAMPLES).parse_options(
        argv,
        CommandArgument("url", metavar="URL", help="the gateway: ws://host:port/ws or wss://…"),
        CommandArgument("--topic", metavar="NAME", help="the topic, if the URL does not name it"),
        CommandArgument("--token-file", metavar="FILE", help="a file that holds your token"),
        CommandArgument(
            "--token", type=parse_token, help="your token; other users of this machine can see it on the command line"
        ),
        make_flag("--watch", help="only watch; read no commands"),
        JSON_LINES_FLAG,
    )
    address = make_topic_address(options.url, options.topic or "", "add --topic NAME")
    return asyncio.run(_follow(address, _token(options), options))


async def _follow(url: str, token: str | None, options: Namespace) -> int:
    async with AsyncExitStack() as stack:
        try:
            me = await stack.enter_async_context(join_topic(url, token=token))
        except (PeerGone, PeerTimeout):
            raise
        except PeerError as error:
            fix = "give --token-file with the token of a participant that the gateway's file lets into this topic"
            raise UsageError(error.message, fix=fix) from None
        terminal = TopicTerminal(me, json.dumps if options.json else _as_text)
        terminal.print_note(f"you are {me.id}; you may send {', '.join(me.capabilities.patterns) or 'nothing'}")
        if me.has_replaced:
            terminal.print_note(
                "another process was here with your token; you have its place, and it was told to leave"
            )
        terminal.who()
        watching = asyncio.create_task(terminal.watch())
        try:
            if not options.watch:
                watching.add_done_callback(lambda _: commands.cancel())
                commands = asyncio.create_task(terminal.run_commands(_lines(sys.stdin)))
                await asyncio.wait([commands])
                if not commands.cancelled():
                    commands.result()
                    return 0
            await watching
        finally:
            watching.cancel()
    raise PeerGone(f"the gateway has closed the connection: {me.end_reason}".rstrip(": "))


def _as_text(line: dict[str, Any]) -> str:
    # Other participants wrote most of it. It must not move the cursor or look like one of our own lines.
    if line["event"] in LAID_OUT or line["text"] == COMMANDS:
        return "\n".join(map(escape_unprintable, line["text"].split("\n")))
    return escape_unprintable(line["text"])


async def _lines(source: TextIO) -> AsyncIterator[str]:
    """Lines as they are typed. The thread that reads them cannot be stopped, so nothing waits for it."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read_lines() -> None:
        while True:
            try:
                line = source.readline()
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except (RuntimeError, ValueError):  # the loop has ended, or the source was closed
                return
            if not line:
                return

    threading.Thread(target=read_lines, daemon=True).start()
    while line := await lines.get():
        yield line


def _token(options: Namespace) -> str | None:
    if options.token_file is None:
        return options.token
    try:
        return Path(options.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {options.token_file}: {error}", fix="give the file of your token") from None


# -- A person at a terminal in a topic: sees what happens, approves, rejects, proposes and withdraws.


COMMANDS: Final = """commands, one per line:
  y N [NAME]           approve proposal N and have it done, by NAME if you say who
  n [N] [REASON]       reject it (without N, the oldest); its proposer is told
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
            text = describe(heard, self._number_of(heard), self._present)
            self._print({"event": EVENTS[type(heard)], "text": text, **make_json_fields(heard)})

    async def run_commands(self, lines: AsyncIterator[str]) -> None:
        """Carry out the commands in `lines` until they end or one is `q`. Then wait for approved work to finish."""
        async for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word == "q":
                break
            if word not in _VERBS:
                self.print_note(COMMANDS if word else "")
                continue
            try:
                _VERBS[word](self, rest.strip())
            except FAILURES as error:
                self.print_note(f"not done: {_reason(error)}")
        if self._work:
            await asyncio.wait(self._work)

    # -- verbs -------------------------------------------------------------------------------------------

    def approve(self, rest: str) -> None:
        # Another proposal may have come while the person typed, and the one that was meant may be gone.
        if not rest.partition(" ")[0].isdecimal():
            raise UsageError("say which proposal you approve", fix="type y and its number; `p` shows those that wait")
        proposal, name = self._select_proposal(rest)
        self._work.start(self._fulfil(proposal, name))

    def reject(self, rest: str) -> None:
        proposal, reason = self._select_proposal(rest)
        self._me.decline(proposal, reason)
        self.print_note(f"rejected {self._number(proposal)}")

    def answer(self, rest: str) -> None:
        proposal, text = self._select_proposal(rest)
        self._me.answer(proposal, {"content": [{"type": "text", "text": text}]})
        self.print_note(f"answered {self._number(proposal)}")

    def withdraw(self, rest: str) -> None:
        proposal, _ = self._select_proposal(rest, of=self._me.id)
        self._me.withdraw(proposal)
        self.print_note(f"withdrew {self._number(proposal)}")

    def perform(self, rest: str) -> None:
        name, _, more = rest.partition(" ")
        tool, _, text = more.strip().partition(" ")
        if not tool:
            raise UsageError("say whom to ask for which tool", fix='do NAME TOOL {"a": 1}')
        params = {"name": tool, "arguments": _arguments(text)}
        if self._me.may(make_message_kind(REQUEST_KIND, "tools/call", params)):
            self._work.start(self._report_outcome(tool, self._me.request(name, "tools/call", params)))
            return
        if name not in self._me.participants:
            raise NotPresent(name, self._me.participants)
        proposal = self._me.propose(name, "tools/call", params)
        self._show_proposal(proposal)
        self._work.start(self._report_outcome(f"{self._number(proposal)}", self._me.outcome(proposal)))

    def pending(self, rest: str = "") -> None:
        for proposal in self._me.proposals:
            self._show_proposal(proposal)

    def who(self, rest: str = "") -> None:
        for name, held in self._me.participants.items():
            self.print_note(f"{name} is here: {', '.join(held.patterns)}")

    def chat(self, rest: str) -> None:
        self._me.chat(rest)

    def _show_proposal(self, proposal: Proposal) -> None:
        text = describe(proposal, self._number(proposal), self._present)
        self._print({"event": PENDING, "text": text, **make_json_fields(proposal)})

    @property
    def _present(self) -> set[str]:
        return {self._me.id, *self._me.participants}

    def print_note(self, text: str) -> None:
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
                self.print_note(f"not done {number}: it names nobody to do it, and {who}; type y {number} NAME")
                return
            target = found[0]
            self.print_note(f"{target} does {number}")
        await self._report_outcome(f"{number}", self._me.fulfil(proposal, to=target))

    async def _report_outcome(self, what: str, work: Awaitable[Any]) -> None:
        try:
            self.print_note(f"done {what}: {shorten_value(await work)}")
        except FAILURES as error:
            self.print_note(f"not done {what}: {_reason(error)}")

    def _select_proposal(self, rest: str, of: str | None = None) -> tuple[Proposal, str]:
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

    def _number_of(self, heard: TopicEvent) -> int | None:
        if isinstance(heard, ProposalRejected | ProposalWithdrawn):
            return self._number(heard.proposal)
        return self._number(heard) if isinstance(heard, Proposal) else None

    def _number(self, proposal: Proposal) -> int:
        # Of the content, not of the id: the proposer chooses that, and may choose it again.
        return self._numbers.setdefault(proposal.digest, len(self._numbers) + 1)

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


# -- What happens in a topic, as lines for a person or as JSON.


MAX_TEXT_LENGTH: Final = 300

EVENTS: Final[dict[type, str]] = {
    Welcome: "welcome",
    Presence: "presence",
    GatewayRefusal: "problem",
    Chat: "chat",
    Proposal: "proposal",
    ProposalRejected: "rejected",
    ProposalWithdrawn: "withdrawn",
    TopicRequest: "asked",
    TopicResponse: "answered",
    SpoofedMessage: "spoofed",
}
"""What `--json` calls them."""


PENDING: Final = "pending"
"""What `--json` calls a proposal that is shown because the person asked."""

LAID_OUT: Final = frozenset({EVENTS[Proposal], PENDING})
"""What has lines of our own: all other texts are one line, whatever is in them."""


def describe(heard: TopicEvent, number: int | None = None, present: Collection[str] = ()) -> str:
    """One line for a person; of a proposal, one more for each argument. `present` has the names of the participants."""
    match heard:
        case Chat():
            return f"{heard.sender}: {heard.text}"
        case Presence():
            return f"{heard.participant} {'is here' if heard.joined else 'has left'}"
        case Proposal():
            return f"[{number}] {ProposalText(heard, present)}"
        case ProposalRejected():
            ends = "" if heard.final else "; it still waits for others"
            return f"[{number}] {heard.envelope.sender} rejects it{_because(heard.reason)}{ends}"
        case ProposalWithdrawn():
            return f"[{number}] {heard.envelope.sender} withdraws it{_because(heard.reason)}"
        case TopicRequest():
            fulfils = f", as {heard.fulfils.proposer} proposed" if heard.fulfils else ""
            return f"{heard.envelope.sender} asks {', '.join(heard.envelope.to) or 'everyone'}: {heard.kind}{fulfils}"
        case TopicResponse():
            body = heard.envelope.body
            return (
                f"{heard.envelope.sender} answers {heard.kind}: {shorten_value(body.get('result', body.get('error')))}"
            )
        case SpoofedMessage():
            return f"{heard.envelope.sender} sent a message that does not match its kind ({heard.kind}): {heard.reason}"
        case GatewayRefusal():
            return f"{'gone' if heard.error == 'replaced' else 'refused'}: {heard.message or heard.error}"
        case _:
            return "your capabilities have changed"


def make_json_fields(heard: TopicEvent) -> dict[str, Any]:
    """What `--json` adds to the line."""
    match heard:
        case Chat():
            return {"from": heard.sender, "to": heard.to, "id": heard.id, "about": heard.about}
        case Presence():
            return {"participant": heard.participant, "joined": heard.joined}
        case Proposal():
            return heard.to_wire()
        case ProposalRejected() | ProposalWithdrawn():
            return {"from": heard.envelope.sender, "reason": heard.reason, **heard.proposal.to_wire()}
        case TopicRequest() | TopicResponse() | SpoofedMessage():
            envelope = heard.envelope
            return {"from": envelope.sender, "to": envelope.to, "kind": envelope.kind, "id": envelope.id}
        case GatewayRefusal():
            return {"error": heard.error, "about": heard.about}
        case _:
            return {}


def _because(reason: str) -> str:
    return f": {reason[:MAX_TEXT_LENGTH]}" if reason else ""


def shorten_value(value: Any) -> str:
    """A value as JSON, cut after LONGEST characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"
