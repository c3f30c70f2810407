"""`defserve add`: add a tool, resource, prompt or feature set, with its test, to the current project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from defserve.cli.content.files import writing
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Diff, Line
from defserve.cli.screen.screen import show
from defserve.tooling.scaffold.adding import ProjectEdit, apply, plan_edits
from defserve.tooling.scaffold.locating import locate
from defserve.tooling.scaffold.parts import KINDS, PartRequest, part_of

EXAMPLES: Final = """  defserve add tool get_weather --description "The weather in a place."
  defserve add resource report --uri 'weather://reports/{day}'
  defserve add prompt summarise
  defserve add feature-set weather.alerts --dry-run
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve add", "Add a part and its test to the server of a project.", EXAMPLES)
    parser.add_argument("kind", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "name", metavar="NAME", help="the name of the function; for a feature set, words with dots between them"
    )
    parser.add_argument("--description", default="", metavar="TEXT", help="what it does; models choose by it")
    parser.add_argument("--uri", default="", help="the URI of the resource; {names} in it become parameters")
    parser.add_argument(
        "--server", metavar="FILE", help="path/server.py or path/server.py:name, if pyproject.toml does not name it"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes, but do not make them")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    if options.uri and options.kind != "resource":
        parser.error("only a resource has a --uri")
    home = locate(Path.cwd(), options.server)
    request = PartRequest(
        options.kind, options.name, home.variable, home.distribution, options.description, options.uri
    )
    edits = plan_edits(home, part_of(request))
    if not options.dry_run:
        with writing("check the permissions of the project, or use --dry-run to see the changes alone"):
            apply(edits)
    if options.json:
        show(
            Data(
                [{"path": shown(edit.path), "is_new": not edit.before, "diff": "".join(diff([edit]))} for edit in edits]
            )
        )
    elif options.dry_run:
        show(Diff("".join(diff(edits))))
    else:
        show(*(Line((f"{'Changed' if edit.before else 'Created'} ", "good"), shown(edit.path)) for edit in edits))
        show("", "Next: write what it does, then run `pytest`.")
    return 0


def diff(edits: list[ProjectEdit]) -> Iterator[str]:
    from difflib import unified_diff

    for path, before, after in edits:
        name = shown(path)
        yield from unified_diff(before.splitlines(True), after.splitlines(True), name, name)


def shown(path: Path) -> str:
    return os.path.relpath(path)
