"""`defserve publish`: check a project and show the commands that upload it; `--yes` runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from defserve.cli.commands.author.package import add_package_options, packaged, report, unedited
from defserve.cli.exits import complain
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.progress import Working
from defserve.cli.screen.screen import show, tell
from defserve.tooling.packaging.uploading import check_ready, uploads
from defserve.tooling.scaffold.creating import questions
from defserve.tooling.scaffold.placeholders import placeholders

ABOUT: Final = """Build and check a project as `defserve package` does, then show the commands that upload it.

Nothing is uploaded without --yes."""
EXAMPLES: Final = """  defserve publish
  defserve publish weather-mcp --yes
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve publish", ABOUT, EXAMPLES)
    add_package_options(parser)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only show the commands (default)")
    choice.add_argument("--yes", action="store_true", help="run them")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    if still := placeholders(Path(options.folder).resolve(), questions()):
        return complain(unedited(still), 1)
    with Working("Building") as work:
        package, out = packaged(options, work)
    if code := report(package):
        return complain("nothing was uploaded\n  fix: solve the problems above, and run it again", code)
    planned = uploads(package, out)
    unsaid: list[Line] = []
    told: Callable[[Line], object] = unsaid.append if options.json else _say
    told(Line((f"{package.wheel.name} {package.wheel.version} is ready.", "good")))
    if options.yes:
        check_ready(planned)
    for upload in planned:
        told(Line((f"  {upload.about}:", "heading")))
        told(Line((f"    (cd {shlex.quote(str(upload.folder))} && {shlex.join(upload.command)})", "name"), hang=4))
        if upload.fix and not options.yes:
            told(Line(f"    first: {upload.fix}"))
        if options.yes and (code := subprocess.run(upload.command, cwd=upload.folder).returncode):
            return complain(f"{shlex.join(upload.command[:3])} … ended with exit code {code}; the rest was not run", 1)
    if options.json:
        done = {"name": package.wheel.name, "version": package.wheel.version, "is_uploaded": options.yes}
        steps = [{"about": each.about, "command": each.command, "folder": str(each.folder)} for each in planned]
        show(Data({**done, "uploads": steps}))
    if not options.yes:
        tell("Nothing was uploaded. Run it again with --yes to upload.")
    return 0


def _say(line: Line) -> None:
    show(line)
    sys.stdout.flush()  # before what the uploading command prints
