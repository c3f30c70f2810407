"""`defserve state`: look at the checkpoints in a store, compare, export and prune them, check that all are whole."""

from __future__ import annotations

import asyncio
import json
import re
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.cli import complain
from defserve.cli.parser import Parser
from defserve.cli.state_pages import drawing, indented, moment, operations, table
from defserve.errors import Refused, UsageError
from defserve.protocols.mcp.asking.sealing import VARIABLE, Sealing
from defserve.stores.checkpoints.secret import derive_secret, stored_checkpoint_secret
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import CheckpointGone, CheckpointTree, Retention, TreeKey
from defserve.stores.open import open_store
from defserve.stores.store import Store

OK: Final = 0
BROKEN: Final = 1
UNKNOWN: Final = 2
"""Not even looked at: no such store, wrong usage."""

EXAMPLES: Final = """  defserve state list sqlite:///notes.db
  defserve state show sqlite:///notes.db --set notes.edit --owner alice
  defserve state show sqlite:///notes.db chk_…
  defserve state diff redis://localhost:6379/0 chk_… chk_… --json
  defserve state export sqlite:///notes.db > notes.jsonl
  defserve state prune sqlite:///notes.db --keep 100 --ttl 30d --idle 365d
  defserve state verify sqlite:///notes.db
"""
ABOUT: Final = "Look at the checkpoints that servers keep in a store. STORE is what was given to Server(store=…)."
VERIFY: Final = f"""check the store itself, and that every checkpoint can be read and is what its id was made for;
exits with 0 if all is whole, 1 if not, 2 if it could not be checked. Ids are made with the server's secret:
set {VARIABLE} if it has one"""

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Opened(NamedTuple):
    """A store, and the trees in it. `has_secret`: whether it is known what the ids were made with."""

    store: Store
    trees: CheckpointStore
    has_secret: bool

    async def chosen(self, options: Namespace) -> list[TreeKey]:
        """The trees that were asked for. Raises UsageError if there are none of that name."""
        found = [key for key in await self.trees.list_trees() if _is_wanted(key, options)]
        if not found and (options.set or options.owner):
            raise UsageError("the store has no such tree", fix=f"see defserve state list {options.store}")
        return found

    async def tree_of(self, id: str, options: Namespace) -> TreeKey:
        """The tree that a checkpoint is in. Raises UsageError."""
        for key in await self.chosen(options):
            try:
                await self.trees.get(key, id)
                return key
            except CheckpointGone:
                continue
        raise UsageError(f"the store has no checkpoint {id}", fix=f"see defserve state show {options.store}")


class Action(NamedTuple):
    run: Callable[[Opened, Namespace], Awaitable[int]]
    about: str
    arguments: dict[str, dict[str, Any]] = {}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ACTIONS:
        _overview().parse_args(argv)
        return BROKEN
    action = ACTIONS[argv[0]]
    options = _options(argv[0], action, argv[1:])
    try:
        return asyncio.run(_run(action, options))
    except (UsageError, Refused) as error:
        return complain(str(error), UNKNOWN if action.run is verify else BROKEN)


async def _run(action: Action, options: Namespace) -> int:
    async with _opened(options.store) as opened:
        return await action.run(opened, options)


@asynccontextmanager
async def _opened(address: str) -> AsyncGenerator[Opened]:
    store = open_store(_checked(address))
    try:
        known = Sealing(None).known()
        secret = derive_secret(known) if known is not None else await stored_checkpoint_secret(store)
        # Only who verifies or commits needs one.
        trees = CheckpointStore(store, secret=secret or bytes(32))
        yield Opened(store, trees, secret is not None)
    finally:
        await store.close()


def _checked(address: str) -> str:
    """Raises UsageError for what would be made by looking at it."""
    if address.startswith("memory:"):
        raise UsageError("a store in memory is its process's own", fix="name a file or a Redis")
    path = Path(address.removeprefix("sqlite:///")).expanduser()
    if address.startswith("sqlite:///") and not path.is_file():
        raise UsageError(f"there is no store: {path} does not exist")
    return address


# -- the actions -----------------------------------------------------------------------------------------


async def list_trees(opened: Opened, options: Namespace) -> int:
    rows = [await _row(opened, key) for key in await opened.chosen(options)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return OK
    head = ("feature set", "owner", "kept", "made", "last", "head")
    for line in table(head, ([*list(row.values())[:4], moment(row["time"]), row["head"] or ""] for row in rows)):
        print(line)
    return OK


async def show(opened: Opened, options: Namespace) -> int:
    if options.checkpoint is not None:
        return await _show_one(opened, options)
    found: list[dict[str, Any]] = []
    for key in await opened.chosen(options):
        tree, checkpoints = await opened.trees.load(key), await opened.trees.checkpoints(key)
        if not options.json:
            for line in table(("feature set", "owner"), [key]):
                print(line)
            print(*drawing(checkpoints, tree.head), "", sep="\n")
        found.append({**_named(key), "head": tree.head, "checkpoints": [at._asdict() for at in checkpoints]})
    if options.json:
        print(json.dumps(found, indent=2))
    return OK


async def _show_one(opened: Opened, options: Namespace) -> int:
    key = await opened.tree_of(options.checkpoint, options)
    at, content = await opened.trees.get(key, options.checkpoint), await opened.trees.content(key, options.checkpoint)
    if options.json:
        print(json.dumps({**_named(key), **at._asdict(), "content": content}, indent=2))
        return OK
    head = ("feature set", "owner", "number", "depth", "made", "parent")
    for line in table(head, [(*key, at.number, at.depth, moment(at.time), at.parent or "")]):
        print(line)
    print("(kept elsewhere: this checkpoint is only a name)" if at.opaque else indented(content))
    return OK


async def diff(opened: Opened, options: Namespace) -> int:
    key = await opened.tree_of(options.a, options)
    try:
        ops = await opened.trees.diff(key, options.a, options.b)
    except CheckpointGone:
        raise UsageError(f"{options.b} is not in the tree of {options.a}") from None
    if options.json:
        print(json.dumps(ops))
    else:
        for line in operations(ops):
            print(line)
    return OK


async def export(opened: Opened, options: Namespace) -> int:
    for key in await opened.chosen(options):
        async for checkpoint in opened.trees.export(key):
            print(json.dumps({**_named(key), **checkpoint}))
    return OK


async def prune(opened: Opened, options: Namespace) -> int:
    if options.keep is None and options.ttl is None and options.idle is None:
        raise UsageError("nothing says what may go", fix="give --keep, --ttl or --idle")
    retention, rows = Retention(options.keep, options.ttl), list[dict[str, Any]]()
    for key in await opened.chosen(options):
        tree = await opened.trees.load(key)
        if await _is_idle(opened, key, tree, options.idle):
            await opened.trees.forget(key)
            rows.append({**_named(key), "dropped": tree.kept, "kept": 0})
            continue
        dropped = await opened.trees.prune(key, retention)
        rows.append({**_named(key), "dropped": dropped, "kept": (await opened.trees.load(key)).kept})
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for line in table(("feature set", "owner", "dropped", "kept"), (list(row.values()) for row in rows)):
            print(line)
    return OK


async def verify(opened: Opened, options: Namespace) -> int:
    keys = await opened.chosen(options)
    wrong = {"the store": found} if (found := await opened.store.check()) else {}
    for key in keys:
        if found := await opened.trees.verify(key):
            wrong[f"{key.feature_set} of {key.owner}"] = found
    count = sum([(await opened.trees.load(key)).kept for key in keys]) if not wrong else 0
    if options.json:
        print(json.dumps({"ok": not wrong, "trees": len(keys), "checkpoints": count, "problems": wrong}, indent=2))
    elif not wrong:
        print(f"whole: {len(keys):,} trees, {count:,} checkpoints")
    else:
        for line in table(("where", "what"), ((where, line) for where, lines in wrong.items() for line in lines)):
            print(line)
    if wrong and not options.json and not opened.has_secret:
        print(f"note: the server's secret is not known; set {VARIABLE}")
    return BROKEN if wrong else OK


async def _row(opened: Opened, key: TreeKey) -> dict[str, Any]:
    tree = await opened.trees.load(key)
    return {
        **_named(key),
        "kept": tree.kept,
        "made": tree.last,
        "time": await _last(opened, key, tree),
        "head": tree.head,
    }


async def _is_idle(opened: Opened, key: TreeKey, tree: CheckpointTree, seconds: float | None) -> bool:
    if seconds is None:
        return False
    last = await _last(opened, key, tree)
    return last is not None and last < time.time() - seconds


async def _last(opened: Opened, key: TreeKey, tree: CheckpointTree) -> float | None:
    """When its head was made."""
    try:
        return (await opened.trees.get(key, tree.head)).time if tree.head is not None else None
    except Refused:
        return None  # damaged: `verify` tells


def _named(key: TreeKey) -> dict[str, Any]:
    return {"featureSet": key.feature_set, "owner": key.owner}


def _is_wanted(key: TreeKey, options: Namespace) -> bool:
    return options.set in (None, key.feature_set) and options.owner in (None, key.owner)


# -- the command line ------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None or not float(found[1]):
        raise ArgumentTypeError(f"{text!r} is no time: write 90s, 15m, 12h or 30d")
    return float(found[1]) * _UNITS[found[2]]


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


ACTIONS: Final = {
    "list": Action(list_trees, "show the trees: one for each owner of a feature set's state"),
    "show": Action(
        show,
        "draw the trees, or show one checkpoint and its content",
        {"checkpoint": {"metavar": "CHECKPOINT", "nargs": "?", "help": "the one to show"}},
    ),
    "diff": Action(
        diff,
        "show the RFC 6902 patch from one checkpoint to another of the same tree",
        {"a": {"metavar": "A", "help": "a checkpoint"}, "b": {"metavar": "B", "help": "another"}},
    ),
    "export": Action(export, "print every checkpoint with its content, as JSON, one object a line"),
    "prune": Action(
        prune,
        "let go of old checkpoints; heads stay, and nobody is disturbed",
        {
            "--keep": {"metavar": "N", "type": _positive, "help": "keep the last N of each tree"},
            "--ttl": {"metavar": "TIME", "type": _seconds, "help": "keep what is younger: 90s, 15m, 12h, 30d"},
            "--idle": {"metavar": "TIME", "type": _seconds, "help": "let go of whole trees whose head is older"},
        },
    ),
    "verify": Action(verify, VERIFY),
}


def _overview() -> Parser:
    parser = Parser("defserve state", ABOUT, EXAMPLES)
    parser.add_argument("action", choices=ACTIONS, help="`defserve state ACTION --help` says more")
    return parser


def _options(name: str, action: Action, argv: list[str]) -> Namespace:
    parser = Parser(f"defserve state {name}", f"{action.about[0].upper()}{action.about[1:]}.")
    parser.add_argument("store", metavar="STORE", help="sqlite:///notes.db, redis://localhost:6379/0, …")
    for argument, details in action.arguments.items():
        parser.add_argument(argument, **details)
    parser.add_argument("--set", metavar="NAME", help="only this feature set's")
    parser.add_argument("--owner", metavar="O", help="only this owner's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)
