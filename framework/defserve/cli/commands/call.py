"""`defserve call`: call one tool and print its result."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from argparse import Namespace
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.answers.prepared import EXAMPLE, PreparedAnswers, answer_of
from defserve.cli.parser import CommandParser
from defserve.cli.target.connection import add_connection_options, connect
from defserve.cli.target.target import TARGET_HELP, ServerTarget, quiet, resolve, split_command
from defserve.cli.tracebacks import brief_tracebacks
from defserve.errors import DefserveError, PeerError, ToolError, UsageError
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.mgp.security.tool_security import tool_security

EXAMPLES: Final = """  defserve call server.py add a=1 b=2
  defserve call server.py search query="two words" tags:='["x", "y"]'
  defserve call server.py search --json '{"query": "two words"}'
  defserve call add a=1 b=2 -- python server.py
  defserve call weather forecast city=Oslo            a server in .mcp.json
  defserve call server.py add a=1 --validate
  defserve call todo.py clear_items --yes             a dangerous tool, without being asked
"""

ARGUMENT: Final = re.compile(r"([^=:\s]+)(:?=)(.*)", re.DOTALL)
UNKNOWN_TOOL: Final = -32602
UNKNOWN_METHOD: Final = -32601
MISSING_CAPABILITY: Final = -32021


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve call", "Call a tool of a server and print its result.", EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="[TARGET] TOOL key=value key:=json", help=TARGET_HELP)
    parser.add_argument("--json", metavar="OBJECT", help="the arguments as one JSON object")
    parser.add_argument(
        "--validate", action="store_true", help="only check whether the tool would accept the arguments"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="say yes to everything that needs confirmation")
    parser.add_argument(
        "--answer",
        action="append",
        default=[],
        type=answer_of,
        metavar="OBJECT",
        help="the answer to a question of the tool, as JSON; repeatable, in the order of the questions",
    )
    parser.add_argument("--raw", action="store_true", help="print the whole result as JSON")
    add_connection_options(parser)
    options, unknown = parser.parse_known_intermixed_args(before)
    if unknown:
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", fix=instead(unknown[0], before))
    words: list[str] = options.words
    with quiet():
        target = resolve(words, options.module, command)
    if not words or ARGUMENT.fullmatch(words[0]):
        raise UsageError("no tool is given", fix="defserve call server.py TOOL key=value ...")
    tool, texts, values = words[0], *read_arguments(words[1:], options.json)
    with quiet(), nullcontext() if options.verbose else brief_tracebacks():
        result = asyncio.run(call(target, tool, texts, values, options))
    print(result if isinstance(result, str) else json.dumps(result, indent=2, ensure_ascii=False))
    return 0


def instead(unknown: str, argv: list[str]) -> str:
    """What to write instead of an unknown option. Most likely it is meant as an argument of the tool."""
    name, equals, value = unknown.lstrip("-").partition("=")
    after = argv[argv.index(unknown) + 1 :]
    if not equals and after and not after[0].startswith("-"):
        value = after[0]
    if not name.replace("-", "_").isidentifier():
        return "run defserve call --help"
    return f"write {name.replace('-', '_')}={shlex.quote(value) if value else '…'}; or run defserve call --help"


def read_arguments(words: list[str], whole: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """`key=value` pairs, whose values are still text, and the JSON values of `key:=json` and `--json`."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    if whole is not None:
        given = read_json(whole, "--json")
        if not isinstance(given, dict):
            raise UsageError("--json must be an object", fix="""--json '{"key": "value"}'""")
        values.update(object_of(given))
    for word in words:
        parts = ARGUMENT.fullmatch(word)
        if parts is None:
            raise UsageError(f"{word!r} is not an argument", fix="write key=text or key:=json")
        name, sign, text = parts.groups()
        if name.startswith("-"):
            raise UsageError(f"{word!r} is not an argument", fix=instead(word, [word]))
        if sign == "=":
            texts[name] = text
        else:
            values[name] = read_json(text, name)
    return texts, values


def read_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: {text!r} is not JSON: {error}", fix=f"for plain text, write {name}=text") from None


async def call(
    target: ServerTarget, tool: str, texts: dict[str, str], values: dict[str, Any], options: Namespace
) -> Any:
    """The tool's value, or its raw result. Raises ToolError when it fails or does not exist."""
    given = PreparedAnswers(options.answer, yes=options.yes)
    async with connect(target, options, answers=given.answers()) as client:
        tools = {item["name"]: item for item in await client.tools()}
        listed = tools.get(tool, {})
        arguments = {**fit(texts, object_of(object_of(listed.get("inputSchema")).get("properties"))), **values}
        if options.validate:
            return await validated(client, tool, arguments, tools, options)
        await given.confirm(tool_security(tool, listed), str(listed.get("title") or tool), arguments)
        try:
            return await (client.call_raw(tool, arguments) if options.raw else client.call(tool, **arguments))
        except (PeerError, ToolError) as error:
            if tool in tools or (isinstance(error, PeerError) and error.code != UNKNOWN_TOOL):
                raise explained(error, given) from None
            raise unknown_tool(client, tool, list(tools), options) from None


def explained(error: PeerError | ToolError, given: PreparedAnswers) -> DefserveError:
    """The error, worded for a person. The server worded it for a model."""
    if given.unanswered is not None:
        return given.unanswered
    if isinstance(error, ToolError):
        return ToolError(re.sub(r"^the user (declined|dismissed)", r"you \1", error.message), data=error.data)
    if error.code == MISSING_CAPABILITY and "elicitation" in str(error.data) and not given.can_answer:
        return UsageError(error.message, fix=f"run it at a terminal, where you can answer, or add {EXAMPLE}")
    return error


async def validated(
    client: Client, tool: str, arguments: dict[str, Any], tools: dict[str, dict[str, Any]], options: Namespace
) -> str:
    """Check the arguments. Raises ToolError. If the server has no `tools/validate`, its list of tools is used."""
    if tool not in tools:
        raise unknown_tool(client, tool, list(tools), options)
    try:
        answer = await client.request("tools/validate", {"name": tool, "arguments": arguments})
        found = [f"{p['field']}: {p['reason']}" if p.get("field") else p["reason"] for p in answer["problems"]]
    except PeerError as error:
        if error.code != UNKNOWN_METHOD:
            raise
        from defserve.tooling.lint.calls import problems

        found = problems(tools.values(), tool, arguments)
    if found:
        raise ToolError("\n".join(found))
    return "valid"


def fit(texts: dict[str, str], properties: dict[str, Any]) -> dict[str, Any]:
    """Text becomes JSON if the schema names a type that is not text, and the text is JSON."""
    fitted: dict[str, Any] = {}
    for name, text in texts.items():
        fitted[name] = text
        if object_of(properties.get(name)).get("type", "string") != "string":
            try:
                fitted[name] = json.loads(text)
            except ValueError:
                pass
    return fitted


def unknown_tool(client: Client, tool: str, known: list[str], options: Namespace) -> ToolError:
    from difflib import get_close_matches

    name = client.server_info.get("name", "the server")
    if not known and (options.token or options.header):
        return ToolError(f"{name} shows you no tools; your token may not allow any")
    close = get_close_matches(tool, known, 1)
    fix = (
        f"did you mean {close[0]!r}?" if close else f"its tools are {', '.join(known)}" if known else "it has no tools"
    )
    return ToolError(f"{name} has no tool {tool!r}\n  fix: {fix}")
