"""`defserve run`: run a server on an address."""

from __future__ import annotations

from typing import Final

from defserve.cli.parser import CommandParser
from defserve.cli.target.target import load, load_package
from defserve.errors import UsageError
from defserve.runner.command_line import add_serving, add_workers, serving

EXAMPLES: Final = """  defserve run server.py                 the object `server`, `mcp` or `app` in the file, on stdio
  defserve run shop.tools:catalogue      an object in a module
  defserve run -m shop                   the server of a package
  defserve run server.py --on http://127.0.0.1:8000/mcp
  defserve run server.py --on http://127.0.0.1:8000/mcp --workers 4
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve run", "Run a server until its client leaves or it is interrupted.", EXAMPLES)
    parser.elsewhere = {"--reload": "write defserve dev; it reloads the server when its code changes"}
    parser.add_argument("target", nargs="?", help="server.py, server.py:name or module:name")
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package with a server, instead of TARGET")
    add_serving(parser)
    add_workers(parser)
    options = parser.parse_args(argv)
    if bool(options.target) == bool(options.module):
        raise UsageError("run needs one server", fix="defserve run server.py, or defserve run -m package")
    if options.workers is not None:
        from defserve.serving.workers.running import supervised

        # The supervisor loads no server. Its workers run this command again, and do.
        local, as_json = bool(options.local_token), bool(options.log_json)
        if (code := supervised(options.on, options.workers, local_token=local, log_json=as_json)) is not None:
            return code
    (load_package(options.module) if options.module else load(options.target)).run(**serving(options))
    return 0
