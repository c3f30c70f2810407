"""`defserve version`: show the versions of defserve and Python."""

from __future__ import annotations

import json
import platform
import sys
from typing import Final

from defserve.cli.parser import CommandParser
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
        print(json.dumps(about, indent=2))
    else:
        print(f"defserve {VERSION}, {about['implementation']} {about['python']} on {about['platform']}")
    return 0
