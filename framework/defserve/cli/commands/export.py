"""`defserve export`: documents made of what a server lists."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.target.connection import add_connection_options
from defserve.cli.target.listing import listed_by
from defserve.cli.target.target import TARGET_HELP, quiet, resolve, split_command
from defserve.errors import UsageError
from defserve.tooling.listing import ServerListing

ABOUT: Final = "Write down what a server offers, without starting it."
EXAMPLES: Final = """  defserve export server.py --format catalog -o tools.json
  defserve export server.py --format openapi
  defserve export server.py --format mgp --env API_KEY >> mgp.toml
  defserve export -m shop --format schemas
"""


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve export", ABOUT, EXAMPLES)
    parser.add_argument("target", nargs="*", help=TARGET_HELP)
    parser.add_argument("--format", choices=FORMATS, required=True, help="which document")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it here instead of to standard output")
    parser.add_argument("--author", default="", help="catalog: whose tools they are, where they do not say")
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="mgp: a variable it needs")
    add_connection_options(parser)
    options = parser.parse_args(before)
    words: list[str] = options.target
    start = ["defserve", "run", *(["-m", options.module] if options.module else words[:1])]
    with quiet():
        target = resolve(words, options.module, command)
        options.start = target.command or start
        if words:
            parser.error(f"one server at a time: what is {words[0]!r}?")
        options.address = target.address
        text = FORMATS[options.format](listed_by(target, options), options)
    if options.output is None:
        print(text, end="")
    else:
        _write(options.output, text)
    return 0


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", fix="name a file in a folder of yours"
        ) from None


def _catalog(listed: ServerListing, options: Namespace) -> str:
    from defserve.tooling.export.catalogue import catalogue

    return _json(catalogue(listed.info, listed.tools, author=options.author))


def _openapi(listed: ServerListing, options: Namespace) -> str:
    from defserve.serving.openapi.document import openapi

    return _json(openapi(listed.info, listed.tools))


def _mgp(listed: ServerListing, options: Namespace) -> str:
    from defserve.tooling.export.mgp_entry import mgp_entry

    return mgp_entry(listed.info, listed.mgp, command=options.start, url=options.address, env=options.env)


def _schemas(listed: ServerListing, options: Namespace) -> str:
    from defserve.tooling.export.catalogue import schemas

    return _json(schemas(listed.tools))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


FORMATS: Final[dict[str, Callable[[ServerListing, Namespace], str]]] = {
    "catalog": _catalog,
    "openapi": _openapi,
    "mgp": _mgp,
    "schemas": _schemas,
}
