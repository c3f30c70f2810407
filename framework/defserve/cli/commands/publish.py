"""`defserve publish`: check a project and show the commands that upload it; `--yes` runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from defserve.cli.commands.package import add_package_options, packaged, report, unedited
from defserve.cli.exits import complain
from defserve.cli.parser import CommandParser
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
    options = parser.parse_args(argv)
    if still := placeholders(Path(options.folder).resolve(), questions()):
        return complain(unedited(still), 1)
    package, out = packaged(options)
    if code := report(package):
        return complain("nothing was uploaded\n  fix: solve the problems above, and run it again", code)
    planned = uploads(package, out)
    print(f"{package.wheel.name} {package.wheel.version} is ready.")
    if options.yes:
        check_ready(planned)
    for upload in planned:
        print(
            f"  {upload.about}:\n    (cd {shlex.quote(str(upload.folder))} && {shlex.join(upload.command)})", flush=True
        )
        if upload.fix and not options.yes:
            print(f"    first: {upload.fix}")
        if options.yes and (code := subprocess.run(upload.command, cwd=upload.folder).returncode):
            return complain(f"{shlex.join(upload.command[:3])} … ended with exit code {code}; the rest was not run", 1)
    if not options.yes:
        print("Nothing was uploaded. Run it again with --yes to upload.", file=sys.stderr)
    return 0
