"""The commands with their options, read from their own parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

from defserve.cli.parser import DESCRIBE, ParserDescription

CommandTable = Mapping[str, tuple[str, str]]
"""Name of a command → the function that runs it, as a dotted name, and one line about it."""


class OptionInfo(NamedTuple):
    """`takes`: whether a value follows. `choices`: the only values it takes, if they are fixed."""

    flags: tuple[str, ...]
    about: str
    takes: bool
    choices: tuple[str, ...]


class CommandInfo(NamedTuple):
    """`words` is how it is typed: ("keys", "create"). `choices`: what its first word may be, if that is fixed."""

    words: tuple[str, ...]
    about: str
    options: tuple[OptionInfo, ...]
    choices: tuple[str, ...]
    takes_words: bool


def commands(table: CommandTable) -> Iterator[CommandInfo]:
    """Every command of the table, each followed by its actions."""
    for name, (place, about) in table.items():
        module, _, function = place.rpartition(".")
        main = getattr(import_module(module), function)
        parser = _parser(main, [])
        yield _command((name,), about, parser)
        for action in _actions(parser):
            below = _parser(main, [action])
            yield _command((name, action), (below.description or "").partition("\n")[0], below)


def _parser(main: object, words: list[str]) -> argparse.ArgumentParser:
    assert callable(main)
    try:
        main([*words, DESCRIBE])
    except ParserDescription as found:
        return found.parser
    raise AssertionError(f"{main} does not use a CommandParser")


def _actions(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """The actions of a command such as `keys`: the choices of its argument `action`."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if action.dest == "action" and not action.option_strings and action.choices is not None:
            return tuple(map(str, action.choices))
    return ()


def _command(words: tuple[str, ...], about: str, parser: argparse.ArgumentParser) -> CommandInfo:
    known = parser._actions  # pyright: ignore[reportPrivateUsage]
    options = tuple(
        OptionInfo(
            tuple(each.option_strings),
            (each.help or "").partition("\n")[0],
            each.nargs != 0,
            tuple(map(str, each.choices or ())),
        )
        for each in known
        if each.option_strings and each.help != argparse.SUPPRESS
    )
    positional = [each for each in known if not each.option_strings]
    choices = tuple(map(str, positional[0].choices or ())) if positional else ()
    return CommandInfo(words, about, options, choices, bool(positional))
