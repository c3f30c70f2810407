"""The argument parser of commands, the types of option values, and options that several commands share.

`run` starts with this module: nothing of a client, a server or the inspector is imported here.
"""

from __future__ import annotations

import argparse
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from defserve.cli.exits import EXIT_FAILURE
from defserve.server.command_line import FixReportingParser

DESCRIBE_ARGUMENT: Final = "\0describe"
"""No command line can contain it. Given as the only argument, it asks for the parser itself."""


class ParserDescriptionRequested(Exception):
    """Raised instead of parsing, with the parser to be read."""

    def __init__(self, parser: CommandParser) -> None:
        self.parser = parser
        super().__init__(parser.prog)


class CommandArgument:
    """An argument of a command, in the words of `ArgumentParser.add_argument`."""

    def __init__(self, *names: str, **details: Any) -> None:
        self.names, self.details = names, details


def make_flag(*names: str, help: str) -> CommandArgument:
    """An option without a value."""
    return CommandArgument(*names, action="store_true", help=help)


JSON_FLAG: Final = make_flag("--json", help="print JSON")
RESULT_JSON_FLAG: Final = make_flag("--json", help="print the result as JSON")
JSON_LINES_FLAG: Final = make_flag("--json", help="print JSON, one object per line")


class CommandParser(FixReportingParser):
    """The parser of one command."""

    example = "http://127.0.0.1:8000/mcp"

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.color = False  # Python 3.14 would colour help by itself

    def add_arguments(self, *arguments: CommandArgument) -> None:
        for argument in arguments:
            self.add_argument(*argument.names, **argument.details)

    def parse_options(self, argv: list[str], *arguments: CommandArgument) -> Any:
        """The options of a command line that has these arguments, after those that were added before."""
        self.add_arguments(*arguments)
        return self.parse_args(argv)

    def describe_unknown_words(self, words: Sequence[str]) -> tuple[str, str]:
        """As in any command line. For what belongs to an address, the fix has the address that was meant."""
        problem, fix = super().describe_unknown_words(words)
        if not self.get_default("on"):
            return problem, fix
        if "://" in words[0]:
            return problem, f"write --on {words[0]}"
        address = fix.removeprefix("write --on ")
        return problem, fix if address == fix else f"write --on {self._address_meant(address)}"

    def _address_meant(self, example: str) -> str:
        """The example, with the host and the port that were given as options."""
        from urllib.parse import urlsplit

        given = self._given or []
        meant = {
            name: (equals and value) or "".join(given[at + 1 : at + 2])
            for at, word in enumerate(given)
            for name, equals, value in (word.partition("="),)
        }
        parts = urlsplit(example)
        host = meant.get("--host") or parts.hostname or ""
        port = port if (port := meant.get("--port", "")).isdecimal() else parts.port
        address = parts._replace(netloc=f"{f'[{host}]' if ':' in host else host}:{port}").geturl()
        is_older = "sse" in (meant.get("--transport"), meant.get("-t"))
        return f"{address} --legacy-sse" if is_older else address

    def _print_message(self, message: str, file: Any = None) -> None:
        from defserve.cli.screen import format_help, format_problem, show_stderr, show_stdout

        kind, _, rest = message.partition(": ")
        if kind == "error":
            show_stderr(*format_problem(kind, rest.rstrip("\n")))
        else:
            show_stdout(*format_help(message.rstrip("\n")))

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        return super().parse_known_args(self._unless_described(args), namespace)

    def parse_known_intermixed_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        # From Python 3.13 on this does not call `parse_known_args`.
        return super().parse_known_intermixed_args(self._unless_described(args), namespace)

    def _unless_described(self, args: Iterable[str] | None) -> list[str] | None:
        words = None if args is None else list(args)
        if words == [DESCRIBE_ARGUMENT]:
            raise ParserDescriptionRequested(self)
        return words


def run_action(
    prog: str, about: str, examples: str, actions: Mapping[str, Callable[[list[str]], int]], argv: list[str]
) -> int:
    """Run the action that the first word names, such as `create` of `defserve keys`."""
    if argv and argv[0] in actions:
        return actions[argv[0]](argv[1:])
    CommandParser(prog, about, examples).parse_options(
        argv, CommandArgument("action", choices=actions, help=f"`{prog} ACTION --help` shows its options")
    )
    return EXIT_FAILURE


# -- Types of option values: what `type=` of an option calls.


SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_TOKEN_LENGTH: Final = 65_536


def parse_duration(text: str) -> float:
    """A duration such as `90s`, `15m` or `30d`; without a unit, seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhdw]?)", text)
    if found is None or not float(found[1]):
        raise ArgumentTypeError(f"{text!r} is not a duration; write 90s, 15m, 12h, 30d or 4w")
    return float(found[1]) * SECONDS[found[2]]


def parse_positive_int(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def parse_seconds(text: str) -> float:
    """A number of seconds to wait; `inf` waits without end."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # nor is NaN
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def parse_token(text: str) -> str:
    """A token, or the file that holds it: `@FILE`, `-` for stdin, or `FILE` if there is such a file.

    No token begins with `@`.
    """
    is_file = text.startswith("@") or text == "-" or os.path.isfile(text)
    return parse_token_file(text) if is_file else text


def parse_token_file(text: str) -> str:
    """The token in a file: `@FILE` or `FILE`; `-` is stdin."""
    path = text.removeprefix("@")
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            found = file.read(MAX_TOKEN_LENGTH + 1).decode("ascii").strip()
    except OSError as error:
        raise ArgumentTypeError(f"cannot read {path}: {error.strerror}; write --token @FILE") from None
    except UnicodeDecodeError:
        found = ""
    if not found or len(found) > MAX_TOKEN_LENGTH or len(found.split()) > 1:
        raise ArgumentTypeError(
            f"{path} must contain exactly one token; `defserve keys create --out FILE` writes such a file"
        )
    return found


# -- The options of commands that can open the inspector. Nothing of the inspector is imported for them.


WEB_OPTIONS: Final = (
    make_flag("--web", help="open the inspector: a page in the browser, on loopback"),
    CommandArgument("--port", type=int, default=0, metavar="N", help="the port of the page (default: a free one)"),
    CommandArgument(
        "--store", metavar="ADDRESS", help="with --web: the server's store, to show all of its checkpoints"
    ),
    make_flag("--no-browser", help="do not open a browser, only print the address"),
)
