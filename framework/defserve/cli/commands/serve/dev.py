"""`defserve dev`: run a server and reload it when its code changes; clients stay connected."""

from __future__ import annotations

import os
from typing import Final

from defserve.auth.urls import is_loopback
from defserve.cli.parser import CommandParser
from defserve.cli.target.target import refuse_configured
from defserve.cli.web.options import add_web_options
from defserve.errors import UsageError
from defserve.host.addresses import is_address
from defserve.runner.address import PORTS, Address
from defserve.runner.command_line import add_serving, serving

GRACE: Final = 30.0
FREE_PORT: Final = "http://127.0.0.1:0/mcp"
ABOUT: Final = """Run a server, and start it again whenever one of its files changes.

Clients stay connected and are told that the lists have changed. The old server finishes running calls. If the new
server does not start, its traceback is shown and the old one goes on serving.

On a loopback address --local-token is on: defserve's own commands connect as you. Others are strangers."""
EXAMPLES: Final = """  defserve dev server.py
  defserve dev server.py --on http://127.0.0.1:8000/mcp --log-level info
  defserve dev shop.tools:catalogue --watch prices.toml
  defserve dev server.py --web                        with the inspector, which stays open
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve dev", ABOUT, EXAMPLES)
    parser.add_argument("target", help="server.py, server.py:name or module:name")
    add_serving(parser)
    parser.add_argument(
        "--watch", metavar="PATH", action="append", default=[], help="also watch this file or folder; repeatable"
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=float,
        default=GRACE,
        help="how long running calls may take after a change (default: %(default)g)",
    )
    add_web_options(parser)
    options = parser.parse_args(argv)
    if options.web and options.on.startswith("stdio:"):
        options.on = FREE_PORT  # standard input and output belong to the person who reads the address
    if options.local_token is None and os.name == "posix":
        options.local_token = _is_on_loopback(options.on) or None
    if is_address(options.target):
        raise UsageError(
            f"{options.target!r} is an address; only code can be served", fix="name server.py or module:name"
        )
    refuse_configured(options.target)
    from defserve.tooling.devserver.plan import ServePlan
    from defserve.tooling.devserver.watched_files import WatchedFiles

    if missing := [path for path in options.watch if not os.path.exists(path)]:
        raise UsageError(f"there is no {missing[0]!r} to watch", fix="check --watch; paths start in the current folder")
    files = WatchedFiles([*first_files(options.target), *options.watch])
    plan = ServePlan(options.target, serving(options))
    if options.on.startswith("stdio:"):
        from defserve.tooling.devserver.stdio import serve as serve_stdio

        return serve_stdio(plan, files, options.grace)
    from defserve.tooling.devserver.sockets import serve

    if options.web:
        from defserve.cli.web.opening import inspector_beside

        return serve(plan, files, options.grace, inspector_beside(options))
    return serve(plan, files, options.grace)


def _is_on_loopback(on: str) -> bool:
    address = Address.parse(on, "/mcp")
    return address.scheme in PORTS and is_loopback(address.host)


def first_files(target: str) -> list[str]:
    """What to watch until a child has reported its files. Raises UsageError for a file that does not exist."""
    path = target.rpartition(".py:")[0] + ".py" if ".py:" in target else target
    if not path.endswith(".py"):
        return [os.path.join(os.getcwd(), f"{path.partition(':')[0].partition('.')[0]}.py")]
    if not os.path.isfile(path):
        path = os.path.abspath(path)
        raise UsageError(f"there is no file {path!r}", fix="check the path; it starts in the current folder")
    return [path]
