"""`defserve read`: print a resource of a server, or save it."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.content.pages import decoded, resource_block
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.progress import Working
from defserve.cli.screen.screen import show
from defserve.cli.target.connection import add_connection_options, connect
from defserve.cli.target.target import TARGET_HELP, ServerTarget, quiet, resolve, split_command
from defserve.cli.tracebacks import brief_tracebacks
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError, did_you_mean
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.older.lacking import list_if_known

ABOUT: Final = """Read a resource of a server.

Text is printed. At a terminal, bytes are saved to a new file; in a pipe they are written as they are."""
EXAMPLES: Final = """  defserve read server.py notes://today
  defserve read server.py charts://sales > sales.png
  defserve read http://127.0.0.1:8000/mcp notes://today --json
  defserve read notes://today -- python server.py
"""
NO_RESOURCE: Final = (-32602, -32002)
BAD_VALUE: Final = "invalid_arguments"
"""There is such a resource. Only a value in its URI is wrong."""
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
SERVER_FILE: Final = re.compile(r"^(?!.*://).*\.(py|toml)(:\w+)?$")


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve read", ABOUT, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="[TARGET] URI", help=TARGET_HELP)
    parser.add_argument("--json", action="store_true", help="print the contents as the server sent them")
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=".", help="where bytes are saved (default: the current folder)"
    )
    add_connection_options(parser)
    options = parser.parse_args(before)
    words: list[str] = options.words
    # The server of a project needs no name, so a single word is the URI.
    alone = len(words) == 1 and command is None and options.module is None
    if not words or (alone and _is_server(words[0])):
        raise UsageError("no URI is given", fix=f"defserve read {words[0] if words else 'server.py'} URI")
    with quiet():
        target = resolve([] if alone else words, options.module, command)
    if len(words) != 1:
        raise UsageError("read needs one URI", fix="defserve read server.py notes://today")
    with quiet(), nullcontext() if options.verbose else brief_tracebacks(), Working(f"Reading {words[0]}") as work:
        contents = asyncio.run(read(target, words[0], options, work))
    if options.json:
        show(Data(contents))
    elif len(contents) == 1 and "blob" in contents[0] and not sys.stdout.isatty():
        _write_bytes(decoded(contents[0]["blob"]) or b"")
    else:
        show(*(resource_block(content, options.output) for content in contents))
    return 0


def _is_server(word: str) -> bool:
    """Whether a word that stands alone names a server: a file of one, or nothing with a scheme, as every URI has."""
    return SERVER_FILE.search(word) is not None or SCHEME.match(word) is None


async def read(target: ServerTarget, uri: str, options: Namespace, work: Working) -> list[dict[str, Any]]:
    """The contents of the resource. Raises UsageError with what the server has instead."""
    async with connect(target, options, work=work) as client:
        try:
            return await client.read(uri)
        except (PeerGone, PeerTimeout):
            raise
        except PeerError as error:
            if error.code not in NO_RESOURCE or "resources" not in client.capabilities:
                raise
            if object_of(error.data).get("error_type") == BAD_VALUE:
                raise UsageError(error.message) from None
            raise await _unknown(client, uri, error) from None


async def _unknown(client: Client, uri: str, error: PeerError) -> UsageError:
    resources, _ = await list_if_known("resources/list", client.resources())
    templates, _ = await list_if_known("resources/templates/list", client.templates())
    known = [str(item["uri"]) for item in resources] + [str(item["uriTemplate"]) for item in templates]
    return UsageError(error.message, fix=did_you_mean(uri, known, "" if known else "it has no resources"))


def _write_bytes(data: bytes) -> None:
    sys.stdout.flush()
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        print(data.decode(errors="replace"), end="")
    else:
        out.write(data)
