"""`defserve keys`: make, list and revoke the API keys of a server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TextIO, TypeVar

from defserve.auth.api_keys import DEFAULT_KEYS_FILE as STORE
from defserve.auth.api_keys import ApiKey, ApiKeys, is_store_address
from defserve.cli.parser import (
    JSON_FLAG,
    CommandArgument,
    CommandParser,
    make_flag,
    parse_duration,
    parse_positive_int,
    run_action,
)
from defserve.cli.screen import show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledText, Table
from defserve.errors import UsageError

T = TypeVar("T")

PRIVATE: Final = 0o600
STORE_HELP: Final = f"the file of the keys, or the address of a store: sqlite:///keys.db (default: {STORE})"
SERVER_HELP: Final = (
    "the server that the keys are for: its name, URL,NAME, or namespace=NAME "
    "(default: the only one in the store; a new file is for the first server that uses it)"
)
CREATE_EXAMPLES: Final = """  defserve keys create alice --allow 'ToolInvoke(add)' --allow ToolsListAll
  defserve keys create bob --allow 'ToolInvoke(*)' --out bob.key
  defserve keys create eve --allow 'ToolInvoke(*)' --store redis://localhost:6379/0 --server notes
  defserve keys create ci --allow 'ToolInvoke(*)' --expires 30d --per-minute 60 --per-hour 1000
"""
LIST_EXAMPLES: Final = """  defserve keys list
  defserve keys list --store sqlite:///keys.db --json
"""
REVOKE_EXAMPLES: Final = """  defserve keys revoke 1f2e3d4c5b6a7988
"""
ALLOW_HELP: Final = (
    "a permission: ToolInvoke(TOOL), ToolRead(TOOL), ToolsListAll, MetricsRead, AdminRead, AdminWrite; repeatable"
)

COLUMNS: Final = ("id", "principal", "created", "last used", "expires", "may", "rates")


def main(argv: list[str]) -> int:
    examples = CREATE_EXAMPLES + LIST_EXAMPLES + REVOKE_EXAMPLES
    actions = {"create": create, "list": show_keys, "revoke": revoke}
    return run_action("defserve keys", "Make, list and revoke API keys.", examples, actions, argv)


def create(argv: list[str]) -> int:
    """`defserve keys create`. Only the key goes to stdout, so that scripts can read it."""
    parser = CommandParser("defserve keys create", "Make a key. It is shown once.", CREATE_EXAMPLES)
    options = parser.parse_options(
        argv,
        CommandArgument("principal", help="who the key is for"),
        CommandArgument("--allow", action="append", default=[], metavar="PERMISSION", help=ALLOW_HELP),
        make_flag("--no-tools", help="create the key even though it can't call any tool"),
        CommandArgument("--scope", action="append", default=[], metavar="SCOPE", help="a scope of the key; repeatable"),
        CommandArgument(
            "--expires", type=parse_duration, metavar="TIME", help="how long it is valid: 90s, 15m, 12h, 30d, 4w"
        ),
        CommandArgument(
            "--per-minute", type=parse_positive_int, metavar="N", help="calls per minute, and the largest burst"
        ),
        CommandArgument("--per-hour", type=parse_positive_int, metavar="N", help="calls per hour"),
        CommandArgument("--out", metavar="FILE", help="write the key to a new file that only you can read"),
        *STORE_OPTIONS,
    )
    if not (options.allow or options.scope or options.no_tools):
        raise UsageError(
            "this key couldn't call any tool, so it wasn't created",
            fix="add --allow 'ToolInvoke(*)' for every tool, or --no-tools if it is not for tools",
        )
    with _open_key_output(options.out) as place:
        made = _on(
            options,
            lambda keys: keys.create(
                options.principal,
                permissions=options.allow,
                scopes=options.scope,
                expires_in=options.expires,
                per_minute=options.per_minute,
                per_hour=options.per_hour,
            ),
            is_reading=False,
        )
        shown = {"key": made.token, **_describe_key(made.key)}
        # Exactly these bytes: scripts read the key from here.
        print(json.dumps(shown, indent=2) if options.json else made.token, file=place)
    if options.json:
        return 0
    who = made.key.principal
    told = f"The key of {who} is in {options.out}" if options.out else f"This is the key of {who}"
    print(f"{told}; it is not shown again.", file=sys.stderr)
    has_scopes_only = options.scope and not (options.allow or options.no_tools)
    if has_scopes_only and not any(scope.startswith("tool:invoke:") for scope in made.key.scopes):
        print(
            "note: scopes alone let a key call no tool, unless the server has Auth(permissions=…)\n"
            "  fix: replace it by one with --allow 'ToolInvoke(*)'; or say --no-tools if that's meant",
            file=sys.stderr,
        )
    return 0


def show_keys(argv: list[str]) -> int:
    """`defserve keys list`."""
    parser = CommandParser(
        "defserve keys list", "Show all keys: who they are for and what they allow, not the secrets.", LIST_EXAMPLES
    )
    options = parser.parse_options(argv, *STORE_OPTIONS)
    keys = _on(options, ApiKeys.keys)
    if options.json:
        show_stdout(JsonBlock([_describe_key(key) for key in keys]))
    else:
        show_stdout(Table(COLUMNS, map(_row, keys), fit=("may",)) if keys else "There are no keys.")
    return 0


def revoke(argv: list[str]) -> int:
    """`defserve keys revoke`."""
    parser = CommandParser("defserve keys revoke", "Revoke a key. It stops working at once.", REVOKE_EXAMPLES)
    options = parser.parse_options(
        argv,
        CommandArgument("id", help="the id that `defserve keys list` shows: the part of the key before the dot"),
        *STORE_OPTIONS,
    )
    id = options.id.partition(".")[0]
    if not _on(options, lambda keys: keys.revoke(id)):
        raise UsageError(f"there is no key {id!r} in {options.store}", fix="run defserve keys list")
    show_stdout(JsonBlock({"revoked": id}, compact=True) if options.json else f"{id} is revoked")
    return 0


def _row(key: ApiKey) -> tuple[StyledText, ...]:
    rates = ((key.per_minute, "min"), (key.per_hour, "h"))
    return (
        (key.id, "title"),
        key.principal,
        _time(key.created_at) or "",
        _time(key.last_used) or "never",
        _time(key.expires_at) or "never",
        " ".join((*key.permissions, *key.scopes)) or "nothing",
        ", ".join(f"{count}/{unit}" for count, unit in rates if count),
    )


def _describe_key(key: ApiKey) -> dict[str, Any]:
    """Everything except the hash, which is secret too."""
    return {
        "id": key.id,
        "principal": key.principal,
        "created_at": _time(key.created_at),
        "last_used": _time(key.last_used),
        "expires_at": _time(key.expires_at),
        "permissions": key.permissions,
        "scopes": key.scopes,
        "per_minute": key.per_minute,
        "per_hour": key.per_hour,
    }


@contextmanager
def _open_key_output(path: str | None) -> Generator[TextIO]:
    """Where the key is written: stdout, or a new private file that is removed again if no key is made."""
    if path is None:
        yield sys.stdout
        return
    try:
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8")  # noqa: SIM115  closed by the caller, below
    except OSError as error:
        raise UsageError(f"cannot create {path}: {error.strerror}", fix="name a file that does not exist yet") from None
    try:
        with file:
            yield file
    except BaseException:
        os.unlink(path)
        raise


def _on(options: Namespace, work: Callable[[ApiKeys], Awaitable[T]], *, is_reading: bool = True) -> T:
    """Open the keys of a server, do something with them, and close them."""

    async def run() -> T:
        keys = ApiKeys(options.store, server=await _server(options, is_reading=is_reading))
        try:
            return await work(keys)
        finally:
            await keys.close()

    return asyncio.run(run())


async def _server(options: Namespace, *, is_reading: bool) -> str | None:
    """Whose keys are meant. A file has those of one server; a store may have several."""
    if not is_store_address(options.store):
        return options.server
    from defserve.stores.identity import choose_server_identity, open_store

    store = open_store(options.store)
    try:
        return (await choose_server_identity(store, options.server, is_reading=is_reading)).label
    finally:
        await store.close()


def _time(seconds: float | None) -> str | None:
    from time import gmtime, strftime

    return None if seconds is None else strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(seconds))


STORE_OPTIONS: Final = (
    CommandArgument("--store", default=STORE, metavar="STORE", help=STORE_HELP),
    CommandArgument("--server", metavar="NAME", help=SERVER_HELP),
    JSON_FLAG,
)
