"""Arguments of a tool or prompt on the command line: `key=text`, `key:=json`, or one JSON object."""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.target.connection import add_connection_options
from defserve.cli.target.target import ServerTarget, is_target, load, of_project, resolve
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_object

ARGUMENT: Final = re.compile(r"([^=:\s]+)(:?=)(.*)", re.DOTALL)
MISSING: Final = re.compile(r"^([^:\n]{1,200}): missing$", re.MULTILINE)
"""A line of a server about an argument that was not given."""
WHOLE: Final = """write --args '{"key": "value"}'"""


def read_options(parser: CommandParser, argv: list[str], command: str, subject: str) -> Namespace:
    """The options of a command whose words are arguments of a `subject`: a tool or a prompt.

    It adds the options that such commands share. Raises UsageError for an option that is meant as an argument.
    """
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=".", help="where pictures and other files are saved (default: here)"
    )
    add_connection_options(parser)
    options, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        problem, fix = parser.unknown(unknown)
        meant = f"{fix} For an argument of the {subject}, " if fix.startswith("did you mean") else ""
        raise UsageError(problem, fix=meant + instead(unknown[0], argv, command))
    return options


def resolve_named(words: list[str], module: str | None, command: list[str] | None) -> ServerTarget:
    """Like `resolve`, where the name of a tool or prompt follows. In a project with one server it may come alone."""
    is_alone = len(words) == 1 or (len(words) > 1 and ARGUMENT.fullmatch(words[1]) is not None)
    if module is None and command is None and is_alone and not is_target(words[0]) and (found := of_project()):
        return ServerTarget(load(found))
    return resolve(words, module, command)


def instead(unknown: str, argv: list[str], command: str = "call") -> str:
    """What to write instead of an unknown option. Most likely it is meant as an argument of the tool."""
    name, equals, value = unknown.lstrip("-").partition("=")
    after = argv[argv.index(unknown) + 1 :]
    if not equals and after and not after[0].startswith("-"):
        value = after[0]
    if not name.replace("-", "_").isidentifier():
        return f"run defserve {command} --help"
    return f"write {name.replace('-', '_')}={shlex.quote(value) if value else '…'}; or run defserve {command} --help"


def read_arguments(words: list[str], whole: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """`key=value` pairs, whose values are still text, and the JSON values of `key:=json` and `--args`."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    if whole is not None:
        given = read_json(whole, "--args", WHOLE)
        if not is_object(given):
            raise UsageError("--args must be an object", fix=WHOLE)
        values.update(given)
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
            values[name] = read_json(text, name, f"for plain text, write {name}=text")
    return texts, values


def read_json(text: str, name: str, fix: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: {text!r} is not JSON: {error}", fix=fix) from None
