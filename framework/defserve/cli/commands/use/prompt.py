"""`defserve prompt`: fill in a prompt of a server and print its messages."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.arguments import ARGUMENT, MISSING, read_arguments, read_options, resolve_named
from defserve.cli.content.pages import content_page
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Block, Data, Line, Written
from defserve.cli.screen.progress import Working
from defserve.cli.screen.screen import show
from defserve.cli.signatures import signature
from defserve.cli.target.connection import connect
from defserve.cli.target.target import TARGET_HELP, ServerTarget, quiet, split_command
from defserve.cli.tracebacks import brief_tracebacks
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError, did_you_mean
from defserve.host.fields import object_of
from defserve.host.older.lacking import list_if_known
from defserve.wire.codec import INVALID_PARAMS
from defserve.wire.jsonvalue import is_array

EXAMPLES: Final = """  defserve prompt server.py review code="def f(): ..."
  defserve prompt server.py review language=python --json
  defserve prompt review -- python server.py
"""


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve prompt", "Fill in a prompt of a server and print its messages.", EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="[TARGET] NAME key=value", help=TARGET_HELP)
    parser.add_argument("--json", action="store_true", help="print the prompt as the server sent it")
    options = read_options(parser, before, "prompt", "prompt")
    words: list[str] = options.words
    with quiet():
        target = resolve_named(words, options.module, command)
    if not words or ARGUMENT.fullmatch(words[0]):
        raise UsageError("no prompt is given", fix="defserve prompt server.py NAME key=value ...")
    texts, values = read_arguments(words[1:], None)
    with quiet(), nullcontext() if options.verbose else brief_tracebacks(), Working(f"Filling in {words[0]}") as work:
        found = asyncio.run(filled(target, words[0], {**texts, **values}, options, work))
    show(*([Data(found)] if options.json else page(found, words[0], options.output)))
    return 0


async def filled(
    target: ServerTarget, name: str, arguments: dict[str, Any], options: Namespace, work: Working
) -> dict[str, Any]:
    """The prompt with its messages. Raises UsageError for one that the server does not have."""
    async with connect(target, options, work=work) as client:
        prompts = (
            (await list_if_known("prompts/list", client.prompts())).items if "prompts" in client.capabilities else []
        )
        known = {str(item.get("name")): item for item in prompts}
        try:
            return await client.prompt(name, **arguments)
        except (PeerGone, PeerTimeout):
            raise
        except PeerError as error:
            if name in known and error.code == INVALID_PARAMS:
                fix = f"give what it takes: {signature(known[name])}" if MISSING.search(error.message) else ""
                raise UsageError(error.message, fix=fix) from None
            if name in known:
                raise
        server = client.server_info.get("name", "the server")
        fix = did_you_mean(name, known, "" if known else "it has no prompts")
        raise UsageError(f"{server} has no prompt {name!r}", fix=fix)


def page(found: dict[str, Any], name: str, folder: str) -> Iterator[Block]:
    """The messages, each below its role."""
    if found.get("description"):
        yield Line((str(found["description"]).partition("\n")[0], "about"), hang=0)
        yield ""
    messages = found.get("messages")
    for number, message in enumerate(map(object_of, messages if is_array(messages) else [])):
        if number:
            yield ""
        yield Line((f"{message.get('role')}:", "heading"))
        content = message.get("content")
        for block in content_page(content if is_array(content) else [content], name, folder):
            if isinstance(block, Written):
                # Roles and texts of several messages: a page, not a file that has to be exact.
                block.is_exact = False
            yield block
