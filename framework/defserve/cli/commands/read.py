"""`defserve read` and `defserve prompt`: print or save a resource; fill in a prompt and print its messages."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.content import decode_base64, format_signature, render_content, render_resource
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.cli.screen import ProgressDisplay, show_stdout
from defserve.cli.screen_blocks import DocumentBlock, JsonBlock, ScreenBlock, StyledLine
from defserve.cli.target import (
    TARGET_HELP,
    ServerTarget,
    redirect_stdout_to_stderr,
    resolve_target,
    split_server_command,
)
from defserve.cli.target_connection import (
    ARGUMENT_PATTERN,
    CONNECTION_OPTIONS,
    MISSING_ARGUMENT_PATTERN,
    connect_target,
    parse_argument_words,
    parse_subject_options,
    resolve_target_before_name,
    shorten_tracebacks,
)
from defserve.client.client import Client
from defserve.client.replies import list_if_supported, object_or_empty
from defserve.core.json_values import is_array
from defserve.core.messages import INVALID_PARAMS
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError, did_you_mean

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


def run_read(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = CommandParser("defserve read", ABOUT, EXAMPLES).parse_options(
        before,
        CommandArgument("words", nargs="*", metavar="[TARGET] URI", help=TARGET_HELP),
        make_flag("--json", help="print the contents as the server sent them"),
        CommandArgument(
            "-o", "--output", metavar="DIR", default=".", help="where bytes are saved (default: the current folder)"
        ),
        *CONNECTION_OPTIONS,
    )
    words: list[str] = options.words
    # The server of a project needs no name, so a single word is the URI.
    alone = len(words) == 1 and command is None and options.module is None
    if not words or (alone and _is_server(words[0])):
        raise UsageError("no URI is given", fix=f"defserve read {words[0] if words else 'server.py'} URI")
    with redirect_stdout_to_stderr():
        target = resolve_target([] if alone else words, options.module, command)
    if len(words) != 1:
        raise UsageError("read needs one URI", fix="defserve read server.py notes://today")
    with (
        redirect_stdout_to_stderr(),
        nullcontext() if options.verbose else shorten_tracebacks(),
        ProgressDisplay(f"Reading {words[0]}") as work,
    ):
        contents = asyncio.run(read_resource(target, words[0], options, work))
    if options.json:
        show_stdout(JsonBlock(contents))
    elif len(contents) == 1 and "blob" in contents[0] and not sys.stdout.isatty():
        _write_bytes(decode_base64(contents[0]["blob"]) or b"")
    else:
        show_stdout(*(render_resource(content, options.output) for content in contents))
    return 0


def _is_server(word: str) -> bool:
    """Whether a word that stands alone names a server: a file of one, or nothing with a scheme, as every URI has."""
    return SERVER_FILE.search(word) is not None or SCHEME.match(word) is None


async def read_resource(
    target: ServerTarget, uri: str, options: Namespace, work: ProgressDisplay
) -> list[dict[str, Any]]:
    """The contents of the resource. Raises UsageError with what the server has instead."""
    async with connect_target(target, options, work=work) as client:
        try:
            return await client.read(uri)
        except (PeerGone, PeerTimeout):
            raise
        except PeerError as error:
            if error.code not in NO_RESOURCE or "resources" not in client.capabilities:
                raise
            if object_or_empty(error.data).get("error_type") == BAD_VALUE:
                raise UsageError(error.message) from None
            raise await _unknown(client, uri, error) from None


async def _unknown(client: Client, uri: str, error: PeerError) -> UsageError:
    resources, _ = await list_if_supported("resources/list", client.resources())
    templates, _ = await list_if_supported("resources/templates/list", client.templates())
    known = [str(item["uri"]) for item in resources] + [str(item["uriTemplate"]) for item in templates]
    return UsageError(error.message, fix=did_you_mean(uri, known, "" if known else "it has no resources"))


def _write_bytes(data: bytes) -> None:
    sys.stdout.flush()
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        print(data.decode(errors="replace"), end="")
    else:
        out.write(data)


# -- `defserve prompt`: fill in a prompt of a server and print its messages.


PROMPT_EXAMPLES: Final = """  defserve prompt server.py review code="def f(): ..."
  defserve prompt server.py review language=python --json
  defserve prompt review -- python server.py
"""


def run_prompt(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    parser = CommandParser("defserve prompt", "Fill in a prompt of a server and print its messages.", PROMPT_EXAMPLES)
    options = parse_subject_options(
        parser,
        before,
        "prompt",
        "prompt",
        CommandArgument("words", nargs="*", metavar="[TARGET] NAME key=value", help=TARGET_HELP),
        make_flag("--json", help="print the prompt as the server sent it"),
    )
    words: list[str] = options.words
    with redirect_stdout_to_stderr():
        target = resolve_target_before_name(words, options.module, command)
    if not words or ARGUMENT_PATTERN.fullmatch(words[0]):
        raise UsageError("no prompt is given", fix="defserve prompt server.py NAME key=value ...")
    texts, values = parse_argument_words(words[1:], None)
    with (
        redirect_stdout_to_stderr(),
        nullcontext() if options.verbose else shorten_tracebacks(),
        ProgressDisplay(f"Filling in {words[0]}") as work,
    ):
        found = asyncio.run(fill_prompt(target, words[0], {**texts, **values}, options, work))
    show_stdout(*([JsonBlock(found)] if options.json else iter_prompt_lines(found, words[0], options.output)))
    return 0


async def fill_prompt(
    target: ServerTarget, name: str, arguments: dict[str, Any], options: Namespace, work: ProgressDisplay
) -> dict[str, Any]:
    """The prompt with its messages. Raises UsageError for one that the server does not have."""
    async with connect_target(target, options, work=work) as client:
        prompts = (
            (await list_if_supported("prompts/list", client.prompts())).items
            if "prompts" in client.capabilities
            else []
        )
        known = {str(item.get("name")): item for item in prompts}
        try:
            return await client.prompt(name, **arguments)
        except (PeerGone, PeerTimeout):
            raise
        except PeerError as error:
            if name in known and error.code == INVALID_PARAMS:
                fix = (
                    f"give what it takes: {format_signature(known[name])}"
                    if MISSING_ARGUMENT_PATTERN.search(error.message)
                    else ""
                )
                raise UsageError(error.message, fix=fix) from None
            if name in known:
                raise
        server = client.server_info.get("name", "the server")
        fix = did_you_mean(name, known, "" if known else "it has no prompts")
        raise UsageError(f"{server} has no prompt {name!r}", fix=fix)


def iter_prompt_lines(found: dict[str, Any], name: str, folder: str) -> Iterator[ScreenBlock]:
    """The messages, each below its role."""
    if found.get("description"):
        yield StyledLine((str(found["description"]).partition("\n")[0], "about"), hang=0)
        yield ""
    messages = found.get("messages")
    for number, message in enumerate(map(object_or_empty, messages if is_array(messages) else [])):
        if number:
            yield ""
        yield StyledLine((f"{message.get('role')}:", "heading"))
        content = message.get("content")
        for block in render_content(content if is_array(content) else [content], name, folder):
            if isinstance(block, DocumentBlock):
                # Roles and texts of several messages: a page, not a file that has to be exact.
                block.is_exact = False
            yield block
