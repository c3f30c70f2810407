"""`defserve version`: show the versions of defserve and Python."""

from __future__ import annotations

import platform
import sys
from typing import Final

from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.screen import show
from defserve.version import VERSION

EXAMPLES: Final = """  defserve version
  defserve version --json
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve version", "Show the version of defserve and of Python.", EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    about = {
        "defserve": VERSION,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{sys.platform} {platform.machine()}",
        "executable": sys.executable,
    }
    if options.json:
        show(Data(about))
    else:
        show(
            Line(
                (f"defserve {VERSION}", "heading"),
                f", {about['implementation']} {about['python']} on {about['platform']}",
            )
        )
    return 0
