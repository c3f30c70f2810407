"""An argument parser that leaves with our exit code and keeps the layout of examples."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Final

from defserve.runner.arguments import CommandLine

DESCRIBE: Final = "\0describe"
"""No command line can hold it: given as the only argument, the parser itself is wanted."""


class Described(Exception):
    """A parser, ready to be read instead of used."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        super().__init__(parser.prog)


class Parser(CommandLine):
    example = "http://127.0.0.1:8000/mcp"

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        return super().parse_known_args(self._unless_asked(args), namespace)

    def parse_known_intermixed_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        # Since Python 3.13 this does not go through the other any more.
        return super().parse_known_intermixed_args(self._unless_asked(args), namespace)

    def _unless_asked(self, args: Iterable[str] | None) -> list[str] | None:
        words = None if args is None else list(args)
        if words == [DESCRIBE]:
            raise Described(self)
        return words
