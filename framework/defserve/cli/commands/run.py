"""`defserve run` and `defserve dev`: run a server on an address; run it and reload it when its code changes.

Start-up counts here: a server is loaded, and nothing of a client or of the development server until it is needed.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any, Final

from defserve.auth.oauth import is_loopback
from defserve.cli.parser import WEB_OPTIONS, CommandArgument, CommandParser
from defserve.cli.target import load_package, load_target, require_code_target
from defserve.client.targets import is_server_address
from defserve.errors import UsageError
from defserve.serve.address import DEFAULT_PORTS_BY_SCHEME, Address
from defserve.server.command_line import add_serving_options, add_workers_option, read_serving_options

EXAMPLES: Final = """  defserve run server.py                 the object `server`, `mcp` or `app` in the file, on stdio
  defserve run shop.tools:catalogue      an object in a module
  defserve run -m shop                   the server of a package
  defserve run server.py --on http://127.0.0.1:8000/mcp
  defserve run server.py --on http://127.0.0.1:8000/mcp --workers 4
"""


def run_server(argv: list[str]) -> int:
    parser = CommandParser("defserve run", "Run a server until its client leaves or it is interrupted.", EXAMPLES)
    parser.elsewhere = {"--reload": "write defserve dev; it reloads the server when its code changes"}
    parser.add_argument("target", nargs="?", help="server.py, server.py:name or module:name")
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package with a server, instead of TARGET")
    add_serving_options(parser)
    add_workers_option(parser)
    options = parser.parse_args(argv)
    if bool(options.target) == bool(options.module):
        raise UsageError("run needs one server", fix="defserve run server.py, or defserve run -m package")
    if options.workers is not None:
        from defserve.server.workers.running import supervise_unless_worker

        # The supervisor loads no server. Its workers run this command again, and do.
        local, as_json = bool(options.local_token), bool(options.log_json)
        if (
            code := supervise_unless_worker(options.on, options.workers, local_token=local, log_json=as_json)
        ) is not None:
            return code
    server = load_package(options.module) if options.module else load_target(options.target)
    if options.workers is None or _is_first_worker():
        warn_of_strangers(server, options)
    server.run(**read_serving_options(options))
    return 0


def _is_first_worker() -> bool:
    from defserve.server.workers.worker import read_worker_membership

    member = read_worker_membership()
    return member is None or member.number == 1


def warn_of_strangers(server: Any, options: Namespace) -> None:
    """Tell in a line that a server keeps state for each caller, at an address where callers do not say who they are."""
    if (
        options.on.partition(":")[0] not in DEFAULT_PORTS_BY_SCHEME
        or options.local_token
        or getattr(server, "auth", None) is not None
    ):
        return
    extensions = [found for each in getattr(server, "self_and_mounted", ()) for found in each.extensions]
    states = [state for found in extensions if found.name == "mcpl" for state in found.list_states()]
    if any(state.per != "server" for state in states):
        from defserve.cli.screen import format_problem, show_stderr

        told = f"{server.name} keeps state for each caller, and cannot tell callers apart at {options.on}: add"
        show_stderr(
            *format_problem(
                "warning",
                f"{told} --local-token (on loopback) or Server(auth=…), see the page State of the documentation",
            )
        )


# -- `defserve dev`: run a server and reload it when its code changes; clients stay connected.


GRACE: Final = 30.0
ABOUT: Final = """Run a server, and start it again whenever one of its files changes.

Clients stay connected and are told that the lists have changed. The old server finishes running calls. If the new
server does not start, its traceback is shown and the old one goes on serving.

On a loopback address --local-token is on: defserve's own commands connect as you. Others are strangers."""
DEV_EXAMPLES: Final = """  defserve dev server.py
  defserve dev server.py --on http://127.0.0.1:8000/mcp --log-level info
  defserve dev shop.tools:catalogue --watch prices.toml
  defserve dev server.py --web                        with the inspector, which stays open
"""


def run_dev(argv: list[str]) -> int:
    parser = CommandParser("defserve dev", ABOUT, DEV_EXAMPLES)
    parser.add_argument("target", help="server.py, server.py:name or module:name")
    add_serving_options(parser)
    options = parser.parse_options(
        argv,
        CommandArgument(
            "--watch", metavar="PATH", action="append", default=[], help="also watch this file or folder; repeatable"
        ),
        CommandArgument(
            "--grace",
            metavar="SECONDS",
            type=float,
            default=GRACE,
            help="how long running calls may take after a change (default: %(default)g)",
        ),
        *WEB_OPTIONS,
    )
    if options.web and options.on.startswith("stdio:"):
        # Standard input and output belong to the person who reads the address.
        options.on = "http://127.0.0.1:0/mcp"
    if options.local_token is None and os.name == "posix":
        address = Address.parse(options.on, "/mcp")
        options.local_token = (address.scheme in DEFAULT_PORTS_BY_SCHEME and is_loopback(address.host)) or None
    if is_server_address(options.target):
        raise UsageError(
            f"{options.target!r} is an address; only code can be served", fix="name server.py or module:name"
        )
    require_code_target(options.target)
    from defserve.tooling.devserver.handover import ServePlan
    from defserve.tooling.devserver.reload_supervisor import WatchedFiles

    if missing := [path for path in options.watch if not os.path.exists(path)]:
        raise UsageError(f"there is no {missing[0]!r} to watch", fix="check --watch; paths start in the current folder")
    files = WatchedFiles([*first_files(options.target), *options.watch])
    plan = ServePlan(options.target, read_serving_options(options))
    if options.on.startswith("stdio:"):
        from defserve.tooling.devserver.client_relay import serve_stdio

        return serve_stdio(plan, files, options.grace)
    from defserve.tooling.devserver.client_relay import serve_sockets

    if options.web:
        from defserve.cli.inspector_launch import make_dev_inspector

        return serve_sockets(plan, files, options.grace, make_dev_inspector(options))
    return serve_sockets(plan, files, options.grace)


def first_files(target: str) -> list[str]:
    """What to watch until a child has reported its files. Raises UsageError for a file that does not exist."""
    path = target.rpartition(".py:")[0] + ".py" if ".py:" in target else target
    if not path.endswith(".py"):
        return [os.path.join(os.getcwd(), f"{path.partition(':')[0].partition('.')[0]}.py")]
    if not os.path.isfile(path):
        path = os.path.abspath(path)
        raise UsageError(f"there is no file {path!r}", fix="check the path; it starts in the current folder")
    return [path]
