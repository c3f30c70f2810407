"""`defserve topic`: watch a topic live, and decide what becomes of proposals."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlencode, urlsplit, urlunsplit

from defserve.cli.parser import CommandParser
from defserve.cli.topic.terminal import COMMANDS, TopicTerminal
from defserve.errors import PeerGone, UsageError
from defserve.host.mcpx.participant import join_topic
from defserve.redaction import printable

EXAMPLES: Final = """  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token
  defserve topic ws://127.0.0.1:8100/ws --topic demo --token-file alice.token --watch --json
"""


def main(argv: list[str]) -> int:
    about = f"Watch a topic live, and approve or reject what is proposed in it.\n\n{COMMANDS}"
    parser = CommandParser("defserve topic", about, EXAMPLES)
    parser.add_argument("url", metavar="URL", help="the gateway: ws://host:port/ws or wss://…")
    parser.add_argument("--topic", metavar="NAME", help="the topic, if the URL does not name it")
    parser.add_argument("--token-file", metavar="FILE", help="a file that holds your token")
    parser.add_argument("--token", help="your token; other users of this machine can see it on the command line")
    parser.add_argument("--watch", action="store_true", help="only watch; read no commands")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    options = parser.parse_args(argv)
    return asyncio.run(_follow(_address(options), _token(options), options))


async def _follow(url: str, token: str | None, options: Namespace) -> int:
    async with join_topic(url, token=token) as me:
        terminal = TopicTerminal(me, json.dumps if options.json else _as_text)
        terminal.say(f"you are {me.id}; you may send {', '.join(me.capabilities.patterns) or 'nothing'}")
        if me.has_replaced:
            terminal.say("another process was here with your token; you have its place, and it was told to leave")
        terminal.who()
        watching = asyncio.create_task(terminal.watch())
        try:
            if not options.watch:
                watching.add_done_callback(lambda _: commands.cancel())
                commands = asyncio.create_task(terminal.obey(_lines(sys.stdin)))
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
    return line["text"] if line["text"] == COMMANDS else printable(line["text"])


async def _lines(source: TextIO) -> AsyncIterator[str]:
    """Lines as they are typed. The thread that reads them cannot be stopped, so nothing waits for it."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        while True:
            line = source.readline()
            try:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            except RuntimeError:  # the loop has ended
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
        raise UsageError(f"{url!r} is not the address of a gateway", fix="write ws://host:port/ws")
    if options.topic is None:
        if "topic=" not in parts.query:
            raise UsageError("no topic is given", fix="add --topic NAME")
        return url
    query = "&".join(filter(None, [parts.query, urlencode({"topic": options.topic})]))
    return urlunsplit((*parts[:3], query, ""))


def _token(options: Namespace) -> str | None:
    if options.token_file is None:
        return options.token
    try:
        return Path(options.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {options.token_file}: {error}", fix="give the file of your token") from None
