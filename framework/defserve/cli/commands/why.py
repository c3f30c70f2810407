"""`defserve why`: whether a caller may call a tool, by which right, and what to change if it may not."""

from __future__ import annotations

import asyncio
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from defserve.cli.exits import EXIT_OK, EXIT_TOOL_FAILED
from defserve.cli.parser import JSON_FLAG, CommandArgument, CommandParser, parse_token_file
from defserve.cli.screen import show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine
from defserve.cli.target import MISSING_TARGET_FIX, find_project_target, load_target, redirect_stdout_to_stderr
from defserve.client.targets import is_server_address
from defserve.core.json_values import is_object
from defserve.errors import UsageError
from defserve.server.call_decision import TOKEN_CALLER_NAME, GateOutcome, explain_call, resolve_named_caller

if TYPE_CHECKING:
    from defserve.client.signin.credentials import Tokens

TOKEN_VARIABLE: Final = "DEFSERVE_TOKEN"
START_SECONDS: Final = 30.0
MARKS: Final[dict[GateOutcome, tuple[str, str]]] = {
    "passed": ("✓", "good"),
    "refused": ("✗", "bad"),
    "depends": ("?", "warning"),
    "fact": ("·", "faint"),
}
ABOUT: Final = """Say whether a caller may call a tool, and why.

The server's own checks decide; the tool doesn't run. Exit code 0: it would run; 5: it would be refused, or only run if
a person says yes, or only the running server can tell."""
EXAMPLES: Final = """  defserve why ci delete_note --server notes.py              an API key, by who it is for
  defserve why key:1f2e3d4c5b6a7988 delete_note               an API key, by its id
  defserve why anonymous delete_note                          someone without a token
  defserve why token delete_note --token @token.txt           the caller that the token names
  defserve why token delete_note                              you, as defserve login signed you in
  defserve why alice delete_note --scopes notes.read,notes.write
  defserve why bob refund --arguments '{"amount": 500}'        what a policy says of these arguments
  defserve why bob vault_read --server mgp.toml               of the kernel that serves this file
"""


def main(argv: list[str]) -> int:
    options = CommandParser("defserve why", ABOUT, EXAMPLES).parse_options(
        argv,
        CommandArgument(
            "caller", help="pipe, anonymous, token, key:ID, who an API key is for, or any name with --scopes"
        ),
        CommandArgument("tool", help="the name of a tool"),
        CommandArgument(
            "--server",
            metavar="TARGET",
            help="server.py, server.py:name, module:name or a kernel's mgp.toml (default: the project's server)",
        ),
        CommandArgument(
            "--token",
            type=parse_token_file,
            metavar="@FILE",
            help=f"a file with the token; - is stdin (default: the variable {TOKEN_VARIABLE}, or your sign-in)",
        ),
        CommandArgument("--scopes", metavar="A,B", help="assume that the caller has these scopes"),
        CommandArgument("--arguments", metavar="JSON", help="what the tool is called with, for a policy to look at"),
        JSON_FLAG,
    )
    target = options.server or find_project_target()
    if target is None:
        raise UsageError("no server is given", fix=f"add --server: {MISSING_TARGET_FIX}")
    if is_server_address(target):
        raise UsageError(
            f"{target!r} is an address, and a server tells nobody its rules",
            fix="name its code: --server server.py; without the code, defserve doctor --auth "
            f"{target} says whether your token is accepted, and which scopes it has",
        )
    if options.arguments is not None and target.endswith(".toml"):
        raise UsageError("a kernel's file has no policy that would look at arguments", fix="leave --arguments out")
    with redirect_stdout_to_stderr():
        told = _ask_kernel(target, options) if target.endswith(".toml") else asyncio.run(_explain(target, options))
    if options.json:
        show_stdout(JsonBlock(told))
    else:
        show_stdout(*_format_decision(told, os.path.basename(target)))
    return EXIT_OK if told["would_run"] else EXIT_TOOL_FAILED


async def _explain(target: str, options: Namespace) -> dict[str, Any]:
    server = load_target(target)
    scopes = None if options.scopes is None else options.scopes.replace(",", " ").split()
    token, granted = _find_token(options), None
    if options.caller == TOKEN_CALLER_NAME and not token and (sign_in := _find_sign_in(server)) is not None:
        token, granted = sign_in.access_token, sign_in.scopes
    caller = await resolve_named_caller(server, options.caller, token=token, scopes=scopes, granted=granted)
    decision = await explain_call(server, caller, options.tool, _parse_arguments(options.arguments))
    return {"caller": caller.title, "tool": options.tool, **decision.describe()}


def _parse_arguments(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--arguments is not JSON: {error}", fix="write an object: --arguments '{\"amount\": 5}'"
        ) from None
    if not is_object(arguments):
        raise UsageError("--arguments is not an object", fix="write --arguments '{\"amount\": 5}'")
    return arguments


def _find_sign_in(server: Any) -> Tokens | None:
    """What `defserve login` keeps for the address of a server."""
    if server.auth is None or not server.auth.resource_url:
        return None
    from defserve.client.signin.credentials import get_user_credential_store

    credential = get_user_credential_store().load_credential(server.auth.resource_url)
    return credential.tokens if credential is not None else None


def _ask_kernel(file: str, options: Namespace) -> dict[str, Any]:
    """What the kernel that serves a file says; if none runs, one that is started for this question."""
    from defserve.kernel.control import ask_kernel, find_socket_paths, locate_config

    config = locate_config(file)
    question = {
        "caller": options.caller,
        "tool": options.tool,
        "token": _find_token(options),
        "scopes": options.scopes,
    }
    if running := find_socket_paths(config):
        (told,) = ask_kernel(config, {"verb": "why", **question}, min(running))
        return told
    return asyncio.run(_ask_own_kernel(config, question))


async def _ask_own_kernel(config: Path, question: dict[str, Any]) -> dict[str, Any]:
    from defserve.kernel.kernel import Kernel

    kernel = Kernel.load(config)
    async with kernel.server.connect():
        backends = (member.backend for member in kernel.members.values())
        await asyncio.gather(*(one.ready(START_SECONDS) for one in backends if one is not None and one.is_new))
        return await kernel.explain_call(**question)


def _find_token(options: Namespace) -> str | None:
    return options.token or os.environ.get(TOKEN_VARIABLE)


def _format_decision(told: dict[str, Any], target: str) -> list[StyledLine]:
    lines = [StyledLine((f"{told['caller']} → {told['tool']} on {target}", "title"))]
    lines += [
        StyledLine("  ", MARKS[step["outcome"]], f" {step['gate']}: ", step["sentence"], hang=4)
        for step in told["steps"]
    ]
    lines.append(StyledLine((told["verdict"], "good" if told["would_run"] else "bad")))
    fixes = dict.fromkeys(step["fix"] for step in told["steps"] if step["fix"])
    return lines + [StyledLine("  ", ("fix:", "fix"), f" {fix}") for fix in fixes]
