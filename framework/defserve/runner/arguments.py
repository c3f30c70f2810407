"""The command line of a server's own script: where to serve. Read only when there is one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence


def parse(arguments: Sequence[str], name: str, version: Callable[[], str]) -> Namespace:
    """The options of `python server.py …`; prints and exits for --help, --version and mistakes."""
    parser = ArgumentParser(
        description=f"Serve {name}.",
        epilog="Without options it speaks on standard input and output, as clients start it.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--on", metavar="ADDRESS", default="stdio:", help="where to serve (default: stdio:)")
    parser.add_argument("--version", action="store_true", help="print the server's version and exit")
    options = parser.parse_args(list(arguments))
    if options.version:
        parser.exit(0, f"{name} {version()}\n")
    return options
