"""The actions that ask a running kernel something, each with its options and how its answers are shown."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.cli.exits import OK, WRONG
from defserve.cli.kernel import governing
from defserve.cli.kernel.action import HELD, ID, KernelAction, each
from defserve.cli.kernel.lines import journal_line, ps_lines, reload_lines, search_lines, state_line
from defserve.cli.option_types import positive
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.screen import show_each
from defserve.kernel.control.asking import ask
from defserve.kernel.control.places import located_kernel
from defserve.wire.jsonvalue import is_object

CONFIG_HELP: Final = "the kernel's file (default: $MGP_CONFIG_PATH, ./mgp.toml, ~/.config/mgp/servers.toml)"
ACTIONS: Final[Mapping[str, KernelAction]] = {
    "ps": KernelAction("show the servers of a kernel and their states", ps_lines),
    "logs": KernelAction(
        "show what servers wrote to standard error, and how their states changed",
        each(journal_line),
        {
            "id": {"metavar": "ID", "nargs": "?", "help": "only this server"},
            "-f": {"dest": "follow", "action": "store_true", "help": "go on with what comes"},
        },
    ),
    "restart": KernelAction(
        "start a server again; the next one is open before the old one ends",
        each(state_line),
        ID | {"--now": {"action": "store_true", "help": "do not wait for calls under way"}},
    ),
    "start": KernelAction("start a server that does not run", each(state_line), ID),
    "stop": KernelAction("let the calls of a server finish, and end it", each(state_line), ID),
    "approve": KernelAction(
        "let tools be used that are held because they changed",
        each(lambda answer: f"{answer['id']}: {answer['tool']} is approved"),
        HELD,
    ),
    "reload": KernelAction("have a kernel read its file again", reload_lines),
    "search": KernelAction(
        "find tools by what they do",
        search_lines,
        {
            "query": {"metavar": "QUERY", "help": "what the tool should do"},
            "--top": {"type": positive, "default": 5, "metavar": "N", "help": "at most so many (default: 5)"},
        },
    ),
    **governing.ACTIONS,
}
WORDS: Final[Mapping[str, str]] = {
    **{name: action.about for name, action in ACTIONS.items() if " " not in name},
    **{name: about for name, (about, _) in governing.GROUPS.items()},
}
"""The words after `defserve kernel` that ask one that runs, and what each does."""


def run(word: str, argv: list[str]) -> int:
    """Ask the kernel and print what it answers. An answer that says that something is not `ok` is a failure."""
    name = word
    if word in governing.GROUPS:
        name, argv = _within(word, argv)
    action = ACTIONS[name]
    options = _options(name, action, argv)
    fields = {key: value for key, value in vars(options).items() if key not in ("config", "pid", "json")}
    failed = list[Any]()

    def answers() -> Iterator[Any]:
        for answer in ask(located_kernel(options.config), {"verb": name, **fields}, options.pid):
            if is_object(answer) and answer.get("ok") is False:
                failed.append(answer)
            yield answer

    show_each((Data(answer, compact=True) for answer in answers()) if options.json else action.show(answers()))
    return WRONG if failed else OK


def _within(group: str, argv: list[str]) -> tuple[str, list[str]]:
    """The action of a group, and the rest. Without a word it is that which lists."""
    about, actions = governing.GROUPS[group]
    if argv and argv[0] in actions:
        return f"{group} {argv[0]}", argv[1:]
    if not {"-h", "--help"} & set(argv) and all(word.startswith("-") for word in argv[:1]):
        return f"{group} list", argv
    told = "\n".join(f"  {name:8} {action.about}" for name, action in actions.items())
    parser = CommandParser(f"defserve kernel {group}", f"{about[0].upper()}{about[1:]}.\n\nactions:\n{told}")
    parser.add_argument("action", nargs="?", choices=actions, default="list", help="default: list")
    return f"{group} {parser.parse_args(argv).action}", []


def _options(name: str, action: KernelAction, argv: list[str]) -> Namespace:
    parser = CommandParser(f"defserve kernel {name}", f"{action.about[0].upper()}{action.about[1:]}.")
    for argument, details in action.arguments.items():
        parser.add_argument(argument, **details)
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    parser.add_argument("--pid", type=positive, metavar="PID", help="which kernel, if several serve this file")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    return parser.parse_args(argv)
