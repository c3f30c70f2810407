"""`defserve state`: the checkpoints in a store: show, compare, roll back, branch, trust, export, prune, verify."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from defserve.cli.exits import complain
from defserve.cli.option_types import positive, seconds
from defserve.cli.parser import CommandParser, run_action
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.counts import counted
from defserve.cli.screen.screen import show
from defserve.cli.state.actions import BROKEN, OK, diff, export, list_trees, prune, show_trees, verify
from defserve.cli.state.moving import branch, rollback, trust
from defserve.cli.state.opened import OpenedStore, existing, opened_store
from defserve.errors import Refused, UsageError
from defserve.protocols.mcp.asking.server_secret import VARIABLE
from defserve.stores.identity import parse_identity

UNKNOWN: Final = 2
"""The store was not checked: it does not exist, or the command line is wrong."""

EXAMPLES: Final = """  defserve state list sqlite:///notes.db
  defserve state show sqlite:///notes.db --set notes.edit --owner alice
  defserve state show sqlite:///notes.db chk_…
  defserve state diff redis://localhost:6379/0 chk_… chk_… --json
  defserve state rollback sqlite:///notes.db 3f9a12bc
  defserve state branch sqlite:///notes.db 3f9a12bc --content repaired.json
  defserve state trust sqlite:///notes.db --set notes.edit
  defserve state export sqlite:///notes.db > notes.jsonl
  defserve state prune sqlite:///notes.db --keep 100 --ttl 30d --idle 365d
  defserve state verify sqlite:///notes.db
  defserve state adopt sqlite:///notes.db --server notes
"""
SERVER: Final = "the server: its name, URL,NAME, or namespace=NAME"
ADOPT: Final = f"""Give a server what version 0.1.0 kept in a store, which did not say whose it was.

Everything in the store becomes this server's: checkpoints, API keys, denied tokens. Stop the servers that use the store
first, and set {VARIABLE} if the server has one: ids of checkpoints were made with it"""
BEGIN: Final = "an id, or as much of it as tells it from others"
ABOUT: Final = "Look at the checkpoints that servers keep in a store. STORE is what was given to Server(store=…)."
VERIFY: Final = f"""check the store itself, and that every checkpoint can be read and matches its id.

Exits with 0 if everything is intact, 1 if not, 2 if it could not be checked. Ids are made with the server's secret:
set {VARIABLE} if it has one"""


class StateAction(NamedTuple):
    """`arguments` are the action's own, beside those that all actions have."""

    run: Callable[[OpenedStore, Namespace], Awaitable[int]]
    about: str
    arguments: dict[str, dict[str, Any]] = {}


def main(argv: list[str]) -> int:
    actions = {**{name: partial(_act, name) for name in ACTIONS}, "adopt": _adopt}
    return run_action("defserve state", ABOUT, EXAMPLES, actions, argv)


def _act(name: str, argv: list[str]) -> int:
    action = ACTIONS[name]
    options = _options(name, action, argv)
    try:
        return asyncio.run(_run(action, options))
    except (UsageError, Refused) as error:
        return complain(str(error), UNKNOWN if action.run is verify else BROKEN)


async def _run(action: StateAction, options: Namespace) -> int:
    async with opened_store(options.store, options.server) as opened:
        return await action.run(opened, options)


def _adopt(argv: list[str]) -> int:
    parser = CommandParser("defserve state adopt", ADOPT)
    parser.add_argument("store", metavar="STORE", help="sqlite:///notes.db, redis://localhost:6379/0, …")
    parser.add_argument("--server", metavar="NAME", required=True, help=SERVER)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    from defserve.protocols.mcp.asking.server_secret import ServerSecret
    from defserve.stores.adopting import adopt_store

    identity = parse_identity(options.server)
    try:
        count = asyncio.run(adopt_store(existing(options.store), identity, ServerSecret(None).known()))
    except (UsageError, Refused) as error:
        return complain(str(error), BROKEN)
    what = f"{identity.label} has now what 0.1.0 kept in the store: {counted(count, 'space')}"
    show(Data({"server": identity.label, "spaces": count}) if options.json else what)
    return OK


def _options(name: str, action: StateAction, argv: list[str]) -> Namespace:
    parser = CommandParser(f"defserve state {name}", f"{action.about[0].upper()}{action.about[1:]}.")
    parser.add_argument("store", metavar="STORE", help="sqlite:///notes.db, redis://localhost:6379/0, …")
    for argument, details in action.arguments.items():
        parser.add_argument(argument, **details)
    parser.add_argument("--server", metavar="NAME", help=f"{SERVER} (default: the only one in the store)")
    parser.add_argument("--set", metavar="NAME", help="only this feature set")
    parser.add_argument("--owner", metavar="NAME", help="only this owner")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--long", action="store_true", help="show whole ids at a terminal too")
    return parser.parse_args(argv)


ACTIONS: Final = {
    "list": StateAction(list_trees, "show the trees: one per owner of a feature set's state"),
    "show": StateAction(
        show_trees,
        "draw the trees, or show one checkpoint and its content",
        {"checkpoint": {"metavar": "CHECKPOINT", "nargs": "?", "help": f"the checkpoint to show: {BEGIN}"}},
    ),
    "diff": StateAction(
        diff,
        "show the RFC 6902 patch from one checkpoint to another of the same tree",
        {"a": {"metavar": "A", "help": "a checkpoint"}, "b": {"metavar": "B", "help": "another"}},
    ),
    "rollback": StateAction(
        rollback,
        "make a checkpoint the head again; nothing is deleted, and no undo function of the server runs",
        {"checkpoint": {"metavar": "CHECKPOINT", "help": BEGIN}},
    ),
    "branch": StateAction(
        branch,
        "make a new checkpoint below an old one, with its content, and make it the head",
        {
            "checkpoint": {"metavar": "CHECKPOINT", "help": BEGIN},
            "--content": {"metavar": "FILE", "help": "a JSON file with another content"},
        },
    ),
    "trust": StateAction(
        trust,
        "say that a state is good which callers brought or 0.1.0 kept, so that dangerous tools take it",
        {"checkpoint": {"metavar": "CHECKPOINT", "nargs": "?", "help": f"{BEGIN}; without it, the head of each tree"}},
    ),
    "export": StateAction(export, "print every checkpoint with its content, as JSON, one object per line"),
    "prune": StateAction(
        prune,
        "delete old checkpoints; heads stay, and servers that use the store are not disturbed",
        {
            "--keep": {"metavar": "N", "type": positive, "help": "keep the last N of each tree"},
            "--ttl": {"metavar": "TIME", "type": seconds, "help": "keep younger ones: 90s, 15m, 12h, 30d, 4w"},
            "--idle": {"metavar": "TIME", "type": seconds, "help": "delete whole trees whose head is older"},
        },
    ),
    "verify": StateAction(verify, VERIFY),
}
