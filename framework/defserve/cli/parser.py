"""The argument parser of commands: exits with our codes, keeps the layout of examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from defserve.cli.exits import WRONG
from defserve.runner.command_line import CommandLine

DESCRIBE: Final = "\0describe"
"""No command line can contain it. Given as the only argument, it asks for the parser itself."""


class ParserDescription(Exception):
    """Raised instead of parsing, with the parser to be read."""

    def __init__(self, parser: CommandParser) -> None:
        self.parser = parser
        super().__init__(parser.prog)


class CommandParser(CommandLine):
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

    def unknown(self, words: Sequence[str]) -> tuple[str, str]:
        """As in any command line. For what belongs to an address, the fix has the address that was meant."""
        problem, fix = super().unknown(words)
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
        from defserve.cli.screen.screen import help_lines, problem_lines, show, tell

        kind, _, rest = message.partition(": ")
        if kind == "error":
            tell(*problem_lines(kind, rest.rstrip("\n")))
        else:
            show(*help_lines(message.rstrip("\n")))

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
        if words == [DESCRIBE]:
            raise ParserDescription(self)
        return words


def run_action(
    prog: str, about: str, examples: str, actions: Mapping[str, Callable[[list[str]], int]], argv: list[str]
) -> int:
    """Run the action that the first word names, such as `create` of `defserve keys`."""
    if argv and argv[0] in actions:
        return actions[argv[0]](argv[1:])
    parser = CommandParser(prog, about, examples)
    parser.add_argument("action", choices=actions, help=f"`{prog} ACTION --help` shows its options")
    parser.parse_args(argv)
    return WRONG
