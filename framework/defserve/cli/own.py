"""The command line of a server that is itself the program: `python server.py`, or a console script.

Imports nothing until there is an argument to read: a client that starts the program waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def main(server: Any, argv: Sequence[str] | None = None) -> int:
    """Serve as the command line says: on stdio unless it says otherwise. The exit code."""
    args = sys.argv[1:] if argv is None else list(argv)
    if not args:
        return server.run() or 0
    options = _parse(server, args)
    if options.log_level:
        log_to_stderr(options.log_level)
    return server.run(on=options.on) or 0


def _parse(server: Any, args: list[str]) -> Any:
    from defserve.cli.parser import Parser

    name = str(getattr(server, "name", "server"))
    parser = Parser(sys.argv[0].rpartition("/")[2] or name, f"Serve {name}.", "  --on stdio:\n")
    parser.add_argument("--on", default="stdio:", metavar="ADDRESS", help="where to serve (stdio:)")
    parser.add_argument("--log-level", choices=LEVELS, help="write log lines of this level and above to stderr")
    version = getattr(server, "version", None) or "unknown"
    parser.add_argument("--version", action="version", version=f"{name} {version}")
    return parser.parse_args(args)


def log_to_stderr(level: str) -> None:
    """Standard output belongs to the protocol."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
