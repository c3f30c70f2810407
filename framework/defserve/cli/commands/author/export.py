"""`defserve export`: documents made from what a server lists."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from defserve.cli.content.files import writing
from defserve.cli.parser import CommandParser
from defserve.cli.screen.progress import ASKING, Working
from defserve.cli.target.connection import add_connection_options
from defserve.cli.target.listing import target_listing
from defserve.cli.target.target import TARGET_HELP, quiet, resolve_only, split_command
from defserve.serving.openapi.document import openapi
from defserve.tooling.export.catalogue import catalogue, schemas
from defserve.tooling.export.mgp_entry import mgp_entry
from defserve.tooling.listing import ServerListing

ABOUT: Final = "Write a document about what a server offers, without starting it."
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
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file instead of standard output")
    parser.add_argument("--author", default="", help="catalog: the author of tools that name none")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="mgp: a variable that the server needs; repeatable"
    )
    add_connection_options(parser)
    options = parser.parse_args(before)
    words: list[str] = options.target
    start = ["defserve", "run", *(["-m", options.module] if options.module else words[:1])]
    with quiet(), Working(ASKING):
        target = resolve_only(words, options.module, command)
        options.start = target.command or start
        options.address = target.address
        text = FORMATS[options.format](target_listing(target, options), options)
    if options.output is None:
        print(text, end="")
    else:
        _write(options.output, text)
    return 0


def _write(path: str, text: str) -> None:
    with writing("name a file that you can write"), open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


FORMATS: Final[dict[str, Callable[[ServerListing, Namespace], str]]] = {
    "catalog": lambda listed, options: _json(catalogue(listed.info, listed.tools, author=options.author)),
    "openapi": lambda listed, options: _json(openapi(listed.info, listed.tools)),
    "mgp": lambda listed, options: mgp_entry(
        listed.info, listed.mgp, command=options.start, url=options.address, env=options.env
    ),
    "schemas": lambda listed, options: _json(schemas(listed.tools)),
}
