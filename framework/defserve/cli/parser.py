"""The argument parser of commands: exits with our codes, keeps the layout of examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
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
