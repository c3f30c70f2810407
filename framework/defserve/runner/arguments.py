"""The command line of a server's own script: where to serve. Read only when there is one."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any


def parse(arguments: Sequence[str], name: str, version: Callable[[], str]) -> tuple[str, dict[str, Any]]:
    """The address and options of `python server.py …`; prints and exits for --help, --version and mistakes."""
    parser = ArgumentParser(
        description=f"Serve {name}.",
        epilog="Without options it speaks on standard input and output, as clients start it.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--on", metavar="ADDRESS", default="stdio:", help="stdio: (default), http://host:port/path, ws://…, unix:/path")
    add(
        "--allow-host", metavar="HOST", action="append", dest="allowed_hosts", help="a name clients may use; repeatable"
    )
    add(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        dest="allowed_origins",
        help="a web page's origin; repeatable",
    )
    add("--trusted-proxy", action="store_const", const=True, help="a proxy in front checks names and origins")
    add("--certfile", metavar="FILE", help="certificate for https://")
    add("--keyfile", metavar="FILE", help="its key, if it is in a file of its own")
    add("--http", choices=("auto", "httptools", "h11"), dest="parser", help="which HTTP parser to use")
    add("--legacy-sse", action="store_const", const=True, help="also serve clients of 2024 (HTTP+SSE) at …/sse")
    add("--version", action="store_true", help="print the server's version and exit")
    options = vars(parser.parse_args(list(arguments)))
    if options.pop("version"):
        parser.exit(0, f"{name} {version()}\n")
    return options.pop("on"), {key: value for key, value in options.items() if value is not None}
