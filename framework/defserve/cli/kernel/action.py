"""What an action of `defserve kernel` is: its words, its options, and how answers are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

Show: TypeAlias = Callable[[Iterable[Any]], Iterable[str]]

ID: Final[dict[str, dict[str, Any]]] = {"id": {"metavar": "ID", "help": "the id of a server, as `ps` shows it"}}
HELD: Final = ID | {
    "tool": {"metavar": "TOOL", "nargs": "?", "help": "only this tool, by the server's name of it"},
    "--digest": {"default": "", "metavar": "HEX", "help": "what is accepted: the digest that `pins list` shows"},
    "--unseen": {"action": "store_true", "help": "also what was too long to be shown"},
}


class KernelAction(NamedTuple):
    """`show` makes lines of the answers as they come. Arguments of the command line are fields of the request."""

    about: str
    show: Show
    arguments: dict[str, dict[str, Any]] = {}


def each(show: Callable[[Any], str]) -> Show:
    """One line for each answer."""
    return lambda answers: (show(answer) for answer in answers)
