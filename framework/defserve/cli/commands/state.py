"""`defserve state`: the checkpoints in a store: show, compare, roll back, branch, trust, export, prune, verify.

Every action takes an opened store and the options, prints, and returns the exit code. Owners come from callers, so
what is printed is escaped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.cli.exits import EXIT_OK, print_error
from defserve.cli.parser import (
    JSON_FLAG,
    CommandArgument,
    CommandParser,
    make_flag,
    parse_duration,
    parse_positive_int,
    run_action,
)
from defserve.cli.screen import can_draw, format_problem, show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine, Table, format_count
from defserve.errors import Refused, UsageError, did_you_mean
from defserve.protocols.mcp.asking.server_secret import SECRET_VARIABLE, ServerSecret
from defserve.stores.checkpoints.checkpoint_store import (
    CheckpointStore,
    HeldCheckpoint,
    StateTampered,
    find_checkpoint_secret,
    find_old_secret,
)
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint, CheckpointGone, CheckpointTree, Retention, TreeKey
from defserve.stores.checkpoints.json_patches import PatchOperation
from defserve.stores.identity import ServerIdentity, ServerStore, choose_server_identity, open_store, parse_identity
from defserve.stores.store import (
    FORMAT_SPACE,
    SECRETS_SPACE,
    SERVER_SPACES,
    SPACE_DESCRIPTIONS,
    SPACES_WITHOUT_SERVER,
    Store,
    StoreChange,
)

if TYPE_CHECKING:
    from defserve.stores.redis import RedisAddress

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
first, and set {SECRET_VARIABLE} if the server has one: ids of checkpoints were made with it"""
STORE: Final = CommandArgument(
    "store", metavar="STORE", help="sqlite:///notes.db, redis://localhost:6379/0, postgres://localhost/notes, …"
)
BEGIN: Final = "an id, or as much of it as tells it from others"
ABOUT: Final = "Look at the checkpoints that servers keep in a store. STORE is what was given to Server(store=…)."
VERIFY: Final = f"""check the store itself, and that every checkpoint can be read and matches its id.

Exits with 0 if everything is intact, 1 if not, 2 if it could not be checked. Ids are made with the server's secret:
set {SECRET_VARIABLE} if it has one"""


class StateAction(NamedTuple):
    """`arguments` are the action's own, beside those that all actions have."""

    run: Callable[[OpenedStore, Namespace], Awaitable[int]]
    about: str
    arguments: Sequence[CommandArgument] = ()


def main(argv: list[str]) -> int:
    actions = {**{name: partial(_act, name) for name in ACTIONS}, "adopt": _adopt}
    return run_action("defserve state", ABOUT, EXAMPLES, actions, argv)


def _act(name: str, argv: list[str]) -> int:
    action = ACTIONS[name]
    parser = CommandParser(f"defserve state {name}", f"{action.about[0].upper()}{action.about[1:]}.")
    options = parser.parse_options(
        argv,
        STORE,
        *action.arguments,
        CommandArgument("--server", metavar="NAME", help=f"{SERVER} (default: the only one in the store)"),
        CommandArgument("--set", metavar="NAME", help="only this feature set"),
        CommandArgument("--owner", metavar="NAME", help="only this owner"),
        JSON_FLAG,
        make_flag("--long", help="show whole ids at a terminal too"),
    )
    try:
        return asyncio.run(_run(action, options))
    except (UsageError, Refused) as error:
        return print_error(str(error), UNKNOWN if action.run is verify else BROKEN)


async def _run(action: StateAction, options: Namespace) -> int:
    async with open_server_store(options.store, options.server) as opened:
        return await action.run(opened, options)


def _adopt(argv: list[str]) -> int:
    options = CommandParser("defserve state adopt", ADOPT).parse_options(
        argv, STORE, CommandArgument("--server", metavar="NAME", required=True, help=SERVER), JSON_FLAG
    )
    identity = parse_identity(options.server)
    try:
        count = asyncio.run(
            adopt_store(require_existing_store(options.store), identity, ServerSecret(None).get_lasting_secret())
        )
    except (UsageError, Refused) as error:
        return print_error(str(error), BROKEN)
    what = f"{identity.label} has now what 0.1.0 kept in the store: {format_count(count, 'space')}"
    show_stdout(JsonBlock({"server": identity.label, "spaces": count}) if options.json else what)
    return EXIT_OK


# -- What `defserve state` can do with an opened store: one function per action, each returns the exit code.


BROKEN: Final = 1


async def list_trees(opened: OpenedStore, options: Namespace) -> int:
    rows = [await _row(opened, key) for key in await opened.select_trees(options)]
    if options.json:
        show_stdout(JsonBlock(rows))
        return EXIT_OK
    names = format_ids([row["head"] for row in rows if row["head"]], options)
    cells = (
        [
            (row["featureSet"], "title"),
            row["owner"],
            row["kept"],
            row["made"],
            format_moment(row["time"]),
            _id(row["head"], names),
        ]
        for row in rows
    )
    show_stdout(
        Table(("feature set", "owner", "kept", "made", "last", "head"), cells, fit=("owner",), right=("kept", "made"))
    )
    return EXIT_OK


def format_ids(ids: list[str], options: Namespace) -> dict[str, str]:
    """Id → what is shown of it: at a terminal as much as tells it from the others, else all of it, for scripts."""
    return short_ids(ids) if can_draw(sys.stdout) and not options.long else {id: id for id in ids}


def _id(id: str | None, names: dict[str, str]) -> tuple[str, str]:
    return names.get(id or "", id or ""), "name"


async def show_trees(opened: OpenedStore, options: Namespace) -> int:
    if options.checkpoint is not None:
        return await _show_one(opened, options)
    found: list[dict[str, Any]] = []
    for key in await opened.select_trees(options):
        tree, checkpoints = await opened.trees.load_tree(key), await opened.trees.list_checkpoints(key)
        if not options.json:
            names = format_ids([at.id for at in checkpoints], options)
            show_stdout(Table(("feature set", "owner"), [key]), *drawing(checkpoints, tree.head, names), "")
        found.append({**describe_tree_key(key), "head": tree.head, "checkpoints": [at._asdict() for at in checkpoints]})
    if options.json:
        show_stdout(JsonBlock(found))
    return EXIT_OK


async def _show_one(opened: OpenedStore, options: Namespace) -> int:
    key, id = await opened.checkpoint(options.checkpoint, options)
    at, content = await opened.trees.get_checkpoint(key, id), await opened.trees.load_content(key, id)
    if options.json:
        show_stdout(JsonBlock({**describe_tree_key(key), **at._asdict(), "content": content}))
        return EXIT_OK
    head = ("feature set", "owner", "number", "depth", "made", "parent")
    parent = _id(at.parent, format_ids([at.parent] if at.parent else [], options))
    show_stdout(Table(head, [(*key, at.number, at.depth, format_moment(at.time), parent)], fit=("owner",)))
    show_stdout("(no content: the server keeps this state itself)" if at.opaque else JsonBlock(content))
    return EXIT_OK


async def diff(opened: OpenedStore, options: Namespace) -> int:
    (key, a), (_, b) = await opened.checkpoint(options.a, options), await opened.checkpoint(options.b, options)
    try:
        ops = await opened.trees.diff(key, a, b)
    except CheckpointGone:
        raise UsageError(f"{options.b} is not in the tree of {options.a}") from None
    show_stdout(*([JsonBlock(ops, compact=True)] if options.json else operations(ops)))
    return EXIT_OK


async def export(opened: OpenedStore, options: Namespace) -> int:
    for key in await opened.select_trees(options):
        async for checkpoint in opened.trees.export(key):
            show_stdout(JsonBlock({**describe_tree_key(key), **checkpoint}, compact=True))
    return EXIT_OK


async def prune(opened: OpenedStore, options: Namespace) -> int:
    if options.keep is None and options.ttl is None and options.idle is None:
        raise UsageError("say what to delete", fix="give --keep, --ttl or --idle")
    retention, rows = Retention(options.keep, options.ttl), list[dict[str, Any]]()
    for key in await opened.select_trees(options):
        tree = await opened.trees.load_tree(key)
        if await _is_idle(opened, key, tree, options.idle):
            await opened.trees.drop_tree(key)
            rows.append({**describe_tree_key(key), "dropped": tree.kept, "kept": 0})
            continue
        dropped = await opened.trees.prune(key, retention)
        rows.append({**describe_tree_key(key), "dropped": dropped, "kept": (await opened.trees.load_tree(key)).kept})
    table = Table(("feature set", "owner", "dropped", "kept"), (list(row.values()) for row in rows), fit=("owner",))
    show_stdout(JsonBlock(rows) if options.json else table)
    return EXIT_OK


async def verify(opened: OpenedStore, options: Namespace) -> int:
    keys = await opened.select_trees(options)
    wrong = {"the store": found} if (found := await opened.store.check()) else {}
    for key in keys:
        if found := await opened.trees.verify(key):
            wrong[f"{key.feature_set} of {key.owner}"] = found
    count = sum([(await opened.trees.load_tree(key)).kept for key in keys]) if not wrong else 0
    if options.json:
        show_stdout(JsonBlock({"ok": not wrong, "trees": len(keys), "checkpoints": count, "problems": wrong}))
    elif not wrong:
        show_stdout(
            StyledLine(("intact:", "good"), f" {format_count(len(keys), 'tree')}, {format_count(count, 'checkpoint')}")
        )
    else:
        rows = ((where, line) for where, lines in wrong.items() for line in lines)
        show_stdout(Table(("where", "what"), rows, fit=("where", "what")))
    if wrong and not options.json and not opened.has_secret:
        show_stdout(*format_problem("note", f"the server's secret is not known; set {SECRET_VARIABLE}"))
    return BROKEN if wrong else EXIT_OK


async def _row(opened: OpenedStore, key: TreeKey) -> dict[str, Any]:
    tree = await opened.trees.load_tree(key)
    return {
        **describe_tree_key(key),
        "kept": tree.kept,
        "made": tree.last,
        "time": await _last(opened, key, tree),
        "head": tree.head,
    }


async def _is_idle(opened: OpenedStore, key: TreeKey, tree: CheckpointTree, seconds: float | None) -> bool:
    if seconds is None:
        return False
    last = await _last(opened, key, tree)
    return last is not None and last < time.time() - seconds


async def _last(opened: OpenedStore, key: TreeKey, tree: CheckpointTree) -> float | None:
    """When the head was made."""
    try:
        return (await opened.trees.get_checkpoint(key, tree.head)).time if tree.head is not None else None
    except Refused:
        return None  # damaged; `verify` reports it


def describe_tree_key(key: TreeKey) -> dict[str, Any]:
    return {"featureSet": key.feature_set, "owner": key.owner}


# -- `defserve state rollback`, `branch` and `trust`: another checkpoint becomes the head of its tree.


async def rollback(opened: OpenedStore, options: Namespace) -> int:
    """Nothing is deleted: what came after the checkpoint stays, and can be rolled back to."""
    key, at = await _find_checkpoint(opened, options)
    before = (await opened.trees.load_tree(key)).head
    await opened.trees.rollback(key, at.id)
    _report(key, at.id, before, options, "is the head again" if before != at.id else "is the head already")
    return EXIT_OK


async def branch(opened: OpenedStore, options: Namespace) -> int:
    """A new checkpoint below the given one, with its content or another.

    It is proved if the given one is. Content of a file is not: nobody knows where that comes from.
    """
    key, at = await _find_checkpoint(opened, options)
    before, held = (await opened.trees.load_tree(key)).head, await _adopt_checkpoint(opened, key, at)
    wanted = held.content() if options.content is None else _read_json_file(options.content)
    draft = opened.trees.draft_commit(held, wanted)
    if not draft.is_same:
        held = held._replace(verified=False)
    made = (await opened.trees.commit(held, draft, branch=True)).checkpoint
    _report(key, made.id, before, options, f"is a branch of {format_ids([at.id], options)[at.id]}, and the head")
    if not made.proved and not options.json:
        show_stdout(
            *format_problem("note", "dangerous tools refuse it; if it is known to be good: defserve state trust")
        )
    return EXIT_OK


async def trust_content(opened: OpenedStore, options: Namespace) -> int:
    """The operator says that a content is good: a proved checkpoint with the same content becomes the head.

    Without a checkpoint, that is done for the head of every tree that the options choose.
    """
    if options.checkpoint is not None:
        chosen = [await _find_checkpoint(opened, options)]
    else:
        chosen = [
            (key, at) for key in await opened.select_trees(options) if (at := await _head(opened, key)) is not None
        ]
    rows: list[dict[str, Any]] = []
    for key, at in chosen:
        if at.proved or at.opaque:
            continue
        before = (await opened.trees.load_tree(key)).head
        held = (await _adopt_checkpoint(opened, key, at))._replace(verified=True)
        made = await opened.trees.commit(held, opened.trees.draft_commit(held, held.content()), branch=True)
        rows.append({**describe_tree_key(key), "head": made.checkpoint.id, "before": before})
    if options.json:
        show_stdout(JsonBlock(rows))
        return EXIT_OK
    names = format_ids([row["head"] for row in rows], options)
    for row in rows:
        show_stdout(
            StyledLine(
                (names[row["head"]], "name"), f" is trusted, and the head ({row['featureSet']} of {row['owner']})"
            )
        )
    if not rows:
        show_stdout(StyledLine("nothing to do: all of it is proved already"))
    return EXIT_OK


async def _head(opened: OpenedStore, key: TreeKey) -> Checkpoint | None:
    head = (await opened.trees.load_tree(key)).head
    return await opened.trees.get_checkpoint(key, head) if head is not None else None


async def _adopt_checkpoint(opened: OpenedStore, key: TreeKey, at: Checkpoint) -> HeldCheckpoint:
    """The checkpoint, to make another one below it. Raises UsageError without the secret of the server."""
    try:
        return await opened.trees.adopt_content(key, await opened.trees.load_content(key, at.id), checkpoint=at.id)
    except StateTampered:
        raise UsageError(
            "a new checkpoint needs the server's secret, and this is a different one", fix=f"set {SECRET_VARIABLE}"
        ) from None


async def _find_checkpoint(opened: OpenedStore, options: Namespace) -> tuple[TreeKey, Checkpoint]:
    """Raises UsageError for a state that the store does not hold: only its server can change that."""
    key, id = await opened.checkpoint(options.checkpoint, options)
    at = await opened.trees.get_checkpoint(key, id)
    if at.opaque:
        raise UsageError(
            f"the server of {key.feature_set} keeps this state itself; the store has only its name",
            fix="have a host send state/rollback to the server",
        )
    return key, at


def _read_json_file(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="name a file with the new content") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix="name a file with the new content, as JSON") from None


def _report(key: TreeKey, head: str, before: str | None, options: Namespace, what: str) -> None:
    if options.json:
        show_stdout(JsonBlock({**describe_tree_key(key), "head": head, "before": before}))
        return
    names = format_ids([id for id in (head, before) if id], options)
    show_stdout(StyledLine((names[head], "name"), f" {what} ({key.feature_set} of {key.owner})"))
    if before is not None and before != head:
        show_stdout(StyledLine("  the head before it: ", (names[before], "name")))


# -- A store of checkpoints that a command looks at, and how its command line names trees and checkpoints.


PREFIX: Final = "chk_"
MIN_ID_LENGTH: Final = 4
"""Characters after `chk_` that name a checkpoint, at least."""


class OpenedStore(NamedTuple):
    """A store and the trees in it. `has_secret`: whether the secret that ids are made with is known."""

    store: Store
    trees: CheckpointStore
    has_secret: bool

    async def select_trees(self, options: Namespace) -> list[TreeKey]:
        """The trees that the options choose. Raises UsageError if they name one that is not there."""
        trees = await self.trees.list_trees()
        found = [key for key in trees if options.set in (None, key.feature_set) and options.owner in (None, key.owner)]
        if not found and (options.set or options.owner):
            chosen = {"feature set": options.set, "owner": options.owner}
            words = " and ".join(f"{kind} {name!r}" for kind, name in chosen.items() if name)
            raise UsageError(f"the store has nothing of {words}", fix=_other(trees, options))
        return found

    async def checkpoint(self, name: str, options: Namespace) -> tuple[TreeKey, str]:
        """The tree of a checkpoint, and its whole id. `name` is the id, or how it begins, with or without `chk_`.

        Raises UsageError if there is none, or several.
        """
        keys = await self.select_trees(options)
        for key in keys:
            try:
                return key, (await self.trees.get_checkpoint(key, name)).id
            except CheckpointGone:
                continue
        begin = name if name.startswith(PREFIX) else PREFIX + name
        found = [
            (key, at.id)
            for key in keys
            if len(begin) >= len(PREFIX) + MIN_ID_LENGTH
            for at in await self.trees.list_checkpoints(key)
            if at.id.startswith(begin)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(short_ids([id for _, id in found]).values())
            raise UsageError(f"{len(found)} checkpoints begin with {name!r}", fix=f"write more of it: {ids}")
        raise UsageError(f"the store has no checkpoint {name!r}", fix=f"see defserve state show {options.store}")


def short_ids(ids: list[str]) -> dict[str, str]:
    """Each id → how much of it tells it from the others, as git does: at least eight characters after `chk_`."""
    size = len(PREFIX) + 8
    while len({id[:size] for id in ids}) < len(set(ids)):
        size += 2
    return {id: id[:size] for id in ids}


def _other(trees: list[TreeKey], options: Namespace) -> str:
    """The fix for a tree that is not there: the name that is nearest."""
    look = f"see defserve state list {options.store}"
    sets, owners = ({key[field]: None for key in trees} for field in (0, 1))
    if options.set and options.set not in sets:
        return did_you_mean(options.set, sets, look)
    return did_you_mean(options.owner, owners, look) if options.owner and options.owner not in owners else look


# -- Checkpoints for a terminal: the tree drawn with lines, patches and times as text.


def drawing(
    checkpoints: Sequence[Checkpoint], head: str | None, names: Mapping[str, str] | None = None
) -> Iterator[StyledLine]:
    """The tree, one line per checkpoint. Parents stand above their children. `names` is what to show of each id.

    Only a branch is indented, so a long history without branches goes straight down.
    """
    kept = {at.id for at in checkpoints}
    children: dict[str | None, list[Checkpoint]] = {}
    for at in checkpoints:
        children.setdefault(at.parent if at.parent in kept else None, []).append(at)
    # (checkpoint, prefix of its line, prefix of the lines below it); the next one is at the end.
    todo = [(at, "", "") for at in reversed(children.get(None, []))]
    while todo:
        at, before, below = todo.pop()
        id = names[at.id] if names else at.id
        mark = ("  <- head", "good") if at.id == head else ""
        yield StyledLine(
            (before, "faint"), (id, "name"), f"  #{at.number}", (f"  {format_moment(at.time)}", "faint"), mark
        )
        after = children.get(at.id, [])
        if len(after) == 1:
            todo.append((after[0], below, below))
        elif after:
            marks = [("├── ", "│   ")] * (len(after) - 1) + [("└── ", "    ")]
            branches = [(child, below + mark, below + rest) for child, (mark, rest) in zip(after, marks, strict=True)]
            todo += reversed(branches)


def operations(ops: Iterable[PatchOperation]) -> Iterator[StyledLine]:
    """A patch, one line per operation."""
    for op in ops:
        value = f"  {json.dumps(op['value'])}" if "value" in op else ""
        style = {"add": "added", "remove": "removed"}.get(op["op"], "warning")
        yield StyledLine((f"{op['op']:7}", style), f"  {op['path'] or '(all)'}{value}", hang=9)


def format_moment(time: float | None) -> str:
    """Seconds since the epoch, as a date."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


ACTIONS: Final = {
    "list": StateAction(list_trees, "show the trees: one per owner of a feature set's state"),
    "show": StateAction(
        show_trees,
        "draw the trees, or show one checkpoint and its content",
        [CommandArgument("checkpoint", metavar="CHECKPOINT", nargs="?", help=f"the checkpoint to show: {BEGIN}")],
    ),
    "diff": StateAction(
        diff,
        "show the RFC 6902 patch from one checkpoint to another of the same tree",
        [CommandArgument("a", metavar="A", help="a checkpoint"), CommandArgument("b", metavar="B", help="another")],
    ),
    "rollback": StateAction(
        rollback,
        "make a checkpoint the head again; nothing is deleted, and no undo function of the server runs",
        [CommandArgument("checkpoint", metavar="CHECKPOINT", help=BEGIN)],
    ),
    "branch": StateAction(
        branch,
        "make a new checkpoint below an old one, with its content, and make it the head",
        [
            CommandArgument("checkpoint", metavar="CHECKPOINT", help=BEGIN),
            CommandArgument("--content", metavar="FILE", help="a JSON file with the new content"),
        ],
    ),
    "trust": StateAction(
        trust_content,
        "say that a state is good which callers brought or 0.1.0 kept, so that dangerous tools take it",
        [
            CommandArgument(
                "checkpoint", metavar="CHECKPOINT", nargs="?", help=f"{BEGIN}; without it, the head of each tree"
            )
        ],
    ),
    "export": StateAction(export, "print every checkpoint with its content, as JSON, one object per line"),
    "prune": StateAction(
        prune,
        "delete old checkpoints; heads stay, and servers that use the store are not disturbed",
        [
            CommandArgument("--keep", metavar="N", type=parse_positive_int, help="keep the last N of each tree"),
            CommandArgument(
                "--ttl", metavar="TIME", type=parse_duration, help="keep younger ones: 90s, 15m, 12h, 30d, 4w"
            ),
            CommandArgument(
                "--idle", metavar="TIME", type=parse_duration, help="delete whole trees whose head is older"
            ),
        ],
    ),
    "verify": StateAction(verify, VERIFY),
}


@asynccontextmanager
async def open_server_store(address: str, server: str | None = None) -> AsyncGenerator[OpenedStore]:
    """The part of a store that is a server's: of that which is named, or of the only one there."""
    raw = open_store(require_existing_store(address))
    try:
        identity = await choose_server_identity(raw, server, is_reading=True)
        store = ServerStore(raw, identity)
        secret = await find_checkpoint_secret(store, ServerSecret(None).get_lasting_secret(), identity)
        # Only verifying and committing need a real secret.
        trees = CheckpointStore(store, secret=secret or bytes(32), old_secret=await find_old_secret(store))
        yield OpenedStore(store, trees, secret is not None)
    finally:
        await raw.close()


def require_existing_store(address: str) -> str:
    """Raises UsageError for a store that opening would create."""
    if address.startswith("memory:"):
        raise UsageError(
            "a store in memory can only be read by its own process", fix="name a SQLite file or a Redis server"
        )
    path = Path(address.removeprefix("sqlite:///")).expanduser()
    if address.startswith("sqlite:///") and not path.is_file():
        raise UsageError(
            f"there is no store: {path} does not exist",
            fix="name a file that is there: sqlite:///notes.db, or sqlite:////var/lib/notes.db with its whole path",
        )
    return address


# -- `adopt`: gives what 0.1.0 kept in a store to one server. 0.1.0 named no server, so somebody has to say whose it is.
#
# Everything in the store becomes that server's: checkpoints, their secret, API keys, denied tokens, and what ends by
# itself. It may be repeated after a failure: what was given already is left alone.


_OLD_LABEL: Final = b"defserve checkpoint ids v1"


async def adopt_store(address: str, identity: ServerIdentity, secret: bytes | None = None) -> int:
    """Make everything that 0.1.0 kept at an address this server's, and return how many spaces that were.

    `secret` is the server's, if it has one: ids of checkpoints that 0.1.0 made with it stay known, and prove nothing.
    Raises UsageError for a store that holds nothing of 0.1.0, and what a store raises.
    """
    import hmac

    from defserve.stores.checkpoints.checkpoint_store import OLD_SECRET_NAME, load_checkpoint_secret
    from defserve.stores.redis import RedisStore
    from defserve.stores.sqlite import SqliteStore

    store = open_store(address)
    if isinstance(store, RedisStore):
        count = await _adopt_redis(store.address, identity)
    elif isinstance(store, SqliteStore):
        count = _adopt_sqlite(store.path, identity)
    else:
        raise UsageError("only SQLite and Redis were stores of 0.1.0", fix="name a SQLite file or a Redis")
    if not count:
        raise UsageError("the store has nothing of defserve 0.1.0 that names no server", fix="there is nothing to do")
    # Keep what 0.1.0 made ids with, and see to it that new ids are made with something else.
    part = ServerStore(store, identity)
    old = await find_old_secret(part) if secret is None else hmac.digest(secret, _OLD_LABEL, "sha256")
    if old is not None:
        await part.change(StoreChange(SECRETS_SPACE, put={OLD_SECRET_NAME: old}, expect={OLD_SECRET_NAME: None}))
    await load_checkpoint_secret(part, secret, identity)
    await store.close()
    return count


def _is_unnamed(space: str) -> bool:
    """Whether a space is one of 0.1.0, which belongs to a server."""
    named = [name for name in SPACE_DESCRIPTIONS if name not in (*SPACES_WITHOUT_SERVER, SERVER_SPACES)]
    return any(space.startswith(name) if name.endswith(":") else space == name for name in named)


def _adopt_sqlite(path: Path, identity: ServerIdentity) -> int:
    import sqlite3

    from defserve.stores.sqlite import FIRST_FORMAT_NAMING_SERVERS, migrate_sqlite_format

    # SQLite would make an empty file of a wrong name.
    connection = sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if not 0 < found <= FIRST_FORMAT_NAMING_SERVERS:
            return 0
        migrate_sqlite_format(connection, found)
        unnamed = [space for (space,) in connection.execute("SELECT DISTINCT space FROM entries") if _is_unnamed(space)]
        for space in unnamed:
            connection.execute("UPDATE entries SET space = ? WHERE space = ?", (identity.make_prefix() + space, space))
        connection.execute("COMMIT")
        return len(unnamed)
    finally:
        connection.close()


async def _adopt_redis(address: RedisAddress, identity: ServerIdentity) -> int:
    from defserve.stores.redis import REDIS_FORMAT_VERSION

    client: Any = address.client()
    count = 0
    try:
        with address.translate_redis_errors():
            for key in [key.decode(errors="surrogateescape") async for key in client.scan_iter(count=1000)]:
                space = key.removeprefix(address.prefix)
                if key.startswith(address.prefix) and _is_unnamed(space):
                    count += bool(await client.renamenx(key, identity.make_prefix(address.prefix) + space))
            await client.hset(address.prefix + FORMAT_SPACE, "version", REDIS_FORMAT_VERSION)
    finally:
        await client.aclose()
    return count
