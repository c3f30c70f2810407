"""The `defserve` command: finds the subcommand, imports only that one, and turns errors into exit codes.

`main` never raises for what a user or a server does wrong: it prints `error: …` with a `fix:` line and returns a code.
Starting a command imports nothing that other commands need.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Final

from defserve.base.version import VERSION
from defserve.cli.exits import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TOOL_FAILED,
    EXIT_UNREACHABLE,
    format_located_error,
    print_error,
)

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
"""What a full disk answers, and a broken one."""

# What one wants to do -> name -> (module with a `main(argv) -> int`, one line of help)
COMMAND_GROUPS: Final = {
    "build": {
        "new": (
            "defserve.cli.commands.project.run_new",
            "create a project: a server, its tests, and what it takes to publish it",
        ),
        "add": ("defserve.cli.commands.project.run_add", "add a tool, resource, prompt or feature set to a project"),
        "migrate": (
            "defserve.cli.commands.project.run_migrate",
            "rewrite a server of FastMCP or the official SDK to defserve",
        ),
        "check": ("defserve.cli.commands.check.run_check", "find problems in the definitions of a server"),
        "test": ("defserve.cli.commands.package.run_test", "run the tests of a project"),
        "eval": ("defserve.cli.commands.eval.run_eval", "measure whether models choose the right tool"),
    },
    "run": {
        "run": ("defserve.cli.commands.run.run_server", "run a server"),
        "dev": (
            "defserve.cli.commands.dev.run_dev",
            "run a server and reload it when its code changes; clients stay connected",
        ),
        "install": ("defserve.cli.commands.install.run_install", "add a server to the settings of an MCP client"),
        "uninstall": (
            "defserve.cli.commands.install.run_uninstall",
            "remove a server from the settings of an MCP client",
        ),
    },
    "look": {
        "list": ("defserve.cli.commands.inspect.run_list", "show the tools, resources and prompts of a server"),
        "call": ("defserve.cli.commands.call.main", "call a tool of a server and print the result"),
        "tasks": (
            "defserve.cli.commands.tasks.main",
            "look up a task that a call started, get its result, or cancel it",
        ),
        "read": ("defserve.cli.commands.read.run_read", "read a resource of a server"),
        "prompt": ("defserve.cli.commands.read.run_prompt", "fill in a prompt of a server and print its messages"),
        "inspect": (
            "defserve.cli.commands.inspect.run_inspect",
            "show a server at a glance: what it speaks, offers, may do and costs",
        ),
        "diff": (
            "defserve.cli.commands.diff.run_diff",
            "compare two servers: what changed, what breaks clients, what it costs",
        ),
        "export": (
            "defserve.cli.commands.check.run_export",
            "write a catalogue, OpenAPI, an mgp.toml entry, JSON Schemas, or tools as models see them",
        ),
    },
    "secure": {
        "keys": ("defserve.cli.commands.keys.main", "make, list and revoke API keys"),
        "why": ("defserve.cli.commands.why.main", "say whether a caller may call a tool, and why"),
        "login": ("defserve.cli.commands.login.run_login", "sign in to a server; other commands then use the token"),
        "logout": ("defserve.cli.commands.login.run_logout", "end a sign-in: revoke its tokens and forget them"),
        "dev-issuer": (
            "defserve.cli.commands.login.run_dev_issuer",
            "for development: an OpenID provider on this machine, to try sign-in with",
        ),
        "audit": ("defserve.cli.commands.audit.main", "check that an audit log is intact, and read it"),
    },
    "ship": {
        "package": (
            "defserve.cli.commands.package.run_package",
            "build everything a project publishes, and check that it agrees",
        ),
        "publish": (
            "defserve.cli.commands.package.run_publish",
            "check a project and show how to upload it; --yes uploads it",
        ),
    },
    "operate": {
        "kernel": (
            "defserve.cli.commands.kernel.main",
            "run the servers of an mgp.toml as one, and operate them",
        ),
        "gateway": ("defserve.cli.commands.gateway.main", "run a gateway, where participants meet in topics"),
        "topic": ("defserve.cli.commands.topic.main", "watch a topic, and approve or reject what is proposed in it"),
        "top": ("defserve.cli.commands.top.main", "watch a running server or kernel: calls, errors, latencies"),
        "state": (
            "defserve.cli.commands.state.main",
            "look at the checkpoints in a store; roll back, branch, export, prune, verify",
        ),
    },
    "help": {
        "doctor": ("defserve.cli.commands.doctor.main", "show what is installed here, and what is missing"),
        "completion": ("defserve.cli.commands.completion.run_completion", "print the completion script of a shell"),
        "version": ("defserve.cli.commands.completion.run_version", "show the version"),
    },
}
COMMANDS: Final = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}

EXAMPLES: Final = """examples:
  defserve run server.py
  defserve list server.py
  defserve call server.py add a=1 b=2
  defserve list -- npx some-mcp-server --flag
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done. 1: wrong usage or an unexpected error. 4: the server cannot be reached. 5: the tool failed or is unknown.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if getattr(sys.stdout, "errors", "") == "strict" and (reconfigure := getattr(sys.stdout, "reconfigure", None)):
        # Another encoding than UTF-8 lacks characters. They are escaped, as Python does on stderr.
        reconfigure(errors="backslashreplace")
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from defserve.cli.exits import replace_closed_streams

        with replace_closed_streams():
            return _run_and_flush(args)
    return _run_and_flush(args)


def _run_and_flush(args: list[str]) -> int:
    try:
        code = _main(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Without this the interpreter would try to write again when it exits.
        sys.stdout = None
        return EXIT_OK
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sys.stdout = None
        return print_error(f"the output cannot be written: {error.strerror}", EXIT_FAILURE)


def _main(args: list[str]) -> int:
    if args[0:1] == ["help"]:
        args = [*args[1:2], "--help"]
    if not args or args[0] in ("-h", "--help"):
        from defserve.cli.screen import format_help, show_stdout

        show_stdout(*format_help(format_usage()))
        return EXIT_OK if args else EXIT_FAILURE
    if args[0] in ("-V", "--version"):
        print(f"defserve {VERSION}")
        return EXIT_OK
    if args[0] not in COMMANDS:
        from defserve.errors import did_you_mean

        fix = _fix_for_server(args[0]) or did_you_mean(args[0], COMMANDS)
        return print_error(f"there is no command {args[0]!r}\n  fix: {fix}", EXIT_FAILURE)
    return _run(args[0], args[1:])


def _fix_for_server(word: str) -> str:
    """What to write if a server was given and no command; empty if it is none."""
    if "://" in word:
        return f"defserve list {word} shows what it offers"
    file, colon, name = word.partition(".py")
    if not file or (name and not name.startswith(":")):
        return ""
    return f"defserve run {word} serves it; defserve list {word} shows what it offers" if colon else ""


def format_usage() -> str:
    """The text of `defserve --help`."""
    width = max(map(len, COMMANDS))
    groups = "\n\n".join(
        "\n".join([f"{group}:", *(f"  {name:{width}}  {about}" for name, (_, about) in commands.items())])
        for group, commands in COMMAND_GROUPS.items()
    )
    return (
        f"usage: defserve COMMAND ...\n\nWrite a def, serve it.\n\n{groups}\n\n{EXAMPLES}\n"
        "Run `defserve COMMAND --help` for the options of a command."
    )


def _run(command: str, argv: list[str]) -> int:
    from importlib import import_module

    from defserve.errors import DefserveError, PeerError, PeerGone, PeerTimeout, ToolError

    try:
        module, _, function = COMMANDS[command][0].rpartition(".")
        start = getattr(import_module(module), function)
        # Completion is about all commands, so it is given the table: no command imports what starts it.
        return start(argv, COMMANDS) if command == "completion" else start(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILURE if stop.code else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ToolError as error:
        return print_error(error.message, EXIT_TOOL_FAILED)
    except (PeerGone, PeerTimeout) as error:
        return print_error(error.message, EXIT_UNREACHABLE)
    except PeerError as error:
        return print_error(f"the server answered with error {error.code}: {error.message}", EXIT_FAILURE)
    except DefserveError as error:
        if _is_verbose(argv):
            _show_traceback(error.__cause__ or error)
        return print_error(format_located_error(error), EXIT_FAILURE)
    except OSError as error:
        if error.filename is None or _is_verbose(argv):
            raise
        return _about_a_file(error)
    except UnicodeEncodeError as error:
        # A byte of the command line that is no text has become half a surrogate pair.
        if error.encoding != "utf-8" or _is_verbose(argv):
            raise
        word = next((word for word in argv if error.object[error.start] in word), "")
        if not word:
            raise
        return print_error(f"{word!r} is not UTF-8\n  fix: give it, or name the file, in UTF-8", EXIT_FAILURE)


def _is_verbose(argv: list[str]) -> bool:
    """Whether all is to be shown. What follows `--` is another program's."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return not {"-v", "--verbose"}.isdisjoint(own)


def _show_traceback(error: BaseException) -> None:
    """Print where an author's code went wrong. An error of the command line alone has no such place."""
    from defserve.client.targets import find_author_line

    if find_author_line(error):
        from traceback import print_exception

        print_exception(error)


def _about_a_file(error: OSError) -> int:
    """Tell of a file that no command has thought of. An author's code keeps its traceback."""
    from defserve.client.targets import find_author_line

    if find_author_line(error):
        raise error
    fix = "check that it is there, and that you may read and write it"
    return print_error(f"cannot use {error.filename}: {error.strerror}\n  fix: {fix}", EXIT_FAILURE)
