"""`defserve topic`: watch a topic live, and approve or decline what is proposed in it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlencode, urlsplit, urlunsplit

from defserve.cli.parser import Parser
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.host.mcpx.participant import TopicClient, join_topic
from defserve.protocols.mcpx.errors import NotCapable, ProposalNotPending
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import Chat, GatewayProblem, Heard, Presence, Spoofed, TopicRequest, TopicResponse
from defserve.redaction import printable

LONGEST: Final = 300

EXAMPLES: Final = """  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token
  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token --watch --json
"""
COMMANDS: Final = """commands, one a line:
  y [N]             approve proposal N (the oldest, unless it is named) and have it done
  n [N] [REASON]    decline it
  p                 what is proposed
  who               who is here
  say TEXT          say something to everyone
  q                 leave"""


def main(argv: list[str]) -> int:
    about = f"Watch a topic live, and approve or decline what is proposed in it.\n\n{COMMANDS}"
    parser = Parser("defserve topic", about, EXAMPLES)
    parser.add_argument("url", metavar="URL", help="the gateway: ws://host:port/ws or wss://…")
    parser.add_argument("--topic", metavar="NAME", help="the topic, if the URL does not name it")
    parser.add_argument("--token-file", metavar="FILE", help="a file that holds your token")
    parser.add_argument("--token", help="your token; others on this machine can read it there")
    parser.add_argument("--watch", action="store_true", help="only watch: read no commands")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    options = parser.parse_args(argv)
    return asyncio.run(_follow(_address(options), _token(options), options))


async def _follow(url: str, token: str | None, options: Namespace) -> int:
    show = _as_json if options.json else _as_text
    async with join_topic(url, token=token) as me:
        desk = Desk(me, show)
        desk.say(f"you are {me.id}; you may send {', '.join(me.capabilities.patterns) or 'nothing'}")
        desk.who()
        watching = asyncio.create_task(desk.watch())
        try:
            if not options.watch:
                watching.add_done_callback(lambda _: commands.cancel())
                commands = asyncio.create_task(desk.obey(_lines(sys.stdin)))
                await asyncio.wait([commands])
                if not commands.cancelled():
                    commands.result()
                    return 0
            await watching
        finally:
            watching.cancel()
    raise PeerGone("the gateway has closed the connection")


class Desk:
    """What a person at a terminal sees and does. Proposals are numbered as they come."""

    def __init__(self, me: TopicClient, show: Callable[[dict[str, Any]], str], out: TextIO | None = None) -> None:
        self._me, self._show, self._out = me, show, out or sys.stdout
        self._numbers: dict[str, int] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Print what happens, until the gateway leaves."""
        async for heard in self._me.heard():
            number = self._number(heard) if isinstance(heard, Proposal) else None
            self._print({"event": type(heard).__name__.lower(), "text": describe(heard, number), **facts(heard)})

    async def obey(self, lines: AsyncIterator[str]) -> None:
        """Do what the lines say, until they end or one says to leave. What was approved is seen through."""
        async for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word == "q":
                break
            if word not in _VERBS:
                self.say(COMMANDS if word else "")
                continue
            try:
                _VERBS[word](self, rest.strip())
            except (NotCapable, ProposalNotPending, UsageError, PeerError) as error:
                self.say(f"not done: {error}")
        if self._work:
            await asyncio.wait(self._work)

    # -- verbs -------------------------------------------------------------------------------------------

    def approve(self, rest: str) -> None:
        proposal = self._chosen(rest)[0]
        task = asyncio.create_task(self._fulfil(proposal))
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
        """A line that is not of the topic."""
        if text:
            self._print({"event": "note", "text": text})

    async def _fulfil(self, proposal: Proposal) -> None:
        number = self._number(proposal)
        try:
            result = await self._me.fulfil(proposal)
            self.say(f"done {number}: {_short(result)}")
        except (NotCapable, ProposalNotPending, UsageError, PeerError) as error:
            self.say(f"not done {number}: {error}")

    def _chosen(self, rest: str) -> tuple[Proposal, str]:
        """The proposal a line is about, and what else it says."""
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
        print(self._show(line), file=self._out, flush=True)


_VERBS: Final[dict[str, Callable[[Desk, str], None]]] = {
    "y": Desk.approve,
    "n": Desk.decline,
    "p": Desk.pending,
    "who": Desk.who,
    "say": Desk.chat,
}


def describe(heard: Heard, number: int | None = None) -> str:
    """One line for a person."""
    match heard:
        case Chat():
            return f"{heard.sender}: {heard.text}"
        case Presence():
            return f"{heard.participant} {'is here' if heard.joined else 'has left'}"
        case Proposal():
            what = _short({"method": heard.method, **heard.params})
            return f"[{number}] {heard.proposer} proposes to {', '.join(heard.to) or 'anyone'}: {what}"
        case TopicRequest():
            fulfils = f", as {heard.fulfils.proposer} proposed" if heard.fulfils else ""
            return f"{heard.envelope.sender} asks {', '.join(heard.envelope.to) or 'everyone'}: {heard.kind}{fulfils}"
        case TopicResponse():
            body = heard.envelope.body
            return f"{heard.envelope.sender} answers {heard.kind}: {_short(body.get('result', body.get('error')))}"
        case Spoofed():
            return f"{heard.envelope.sender} sent what its kind does not say ({heard.kind}): {heard.reason}"
        case GatewayProblem():
            return f"refused: {heard.message or heard.error}"
        case _:
            return "welcomed again: your capabilities have changed"


def facts(heard: Heard) -> dict[str, Any]:
    """What `--json` adds to the line."""
    match heard:
        case Chat():
            return {"from": heard.sender, "to": heard.to, "id": heard.id, "about": heard.about}
        case Presence():
            return {"participant": heard.participant, "joined": heard.joined}
        case Proposal():
            return heard.wire()
        case TopicRequest() | TopicResponse() | Spoofed():
            envelope = heard.envelope
            return {"from": envelope.sender, "to": envelope.to, "kind": envelope.kind, "id": envelope.id}
        case GatewayProblem():
            return {"error": heard.error, "about": heard.about}
        case _:
            return {}


def _as_text(line: dict[str, Any]) -> str:
    # Others wrote most of it: nothing of that may move the cursor or pass for a line of ours.
    return line["text"] if line["text"] == COMMANDS else printable(line["text"])


def _as_json(line: dict[str, Any]) -> str:
    return json.dumps(line)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


async def _lines(source: TextIO) -> AsyncIterator[str]:
    """Lines as they come. A thread reads them: it cannot be stopped, so nothing waits for it."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        while True:
            line = source.readline()
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except RuntimeError:  # the loop has ended meanwhile
                return
            if not line:
                return

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        yield line


def _address(options: Namespace) -> str:
    url: str = options.url
    parts = urlsplit(url)
    if parts.scheme.removeprefix("mcpx+") not in ("ws", "wss") or not parts.netloc:
        raise UsageError(f"there can be no gateway at {options.url!r}", fix="write ws://host:port/ws")
    if options.topic is None:
        if "topic=" not in parts.query:
            raise UsageError("no topic is named", fix="--topic demo")
        return options.url
    query = "&".join(filter(None, [parts.query, urlencode({"topic": options.topic})]))
    return urlunsplit((*parts[:3], query, ""))


def _token(options: Namespace) -> str | None:
    if options.token_file is None:
        return options.token
    try:
        return Path(options.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.token_file} cannot be read: {error}", fix="give the file of your token") from None
