"""`defserve run`: run a server on an address.

Start-up counts here: a server is loaded, and nothing of a client until it is needed.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.target import load_package, load_target
from defserve.errors import UsageError
from defserve.serve.address import DEFAULT_PORTS_BY_SCHEME
from defserve.server.command_line import add_serving_options, add_workers_option, read_serving_options

EXAMPLES: Final = """  defserve run server.py                 the object `server`, `mcp` or `app` in the file, on stdio
  defserve run shop.tools:catalogue      an object in a module
  defserve run -m shop                   the server of a package
  defserve run server.py --on http://127.0.0.1:8000/mcp
  defserve run server.py --on http://127.0.0.1:8000/mcp --workers 4 --stateless
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
    if options.workers is None and not options.on.startswith("stdio:"):
        from defserve.cli.screen import show_start_at_terminal

        show_start_at_terminal(server)
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
