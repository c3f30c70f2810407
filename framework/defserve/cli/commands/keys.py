"""`defserve keys`: make, list and revoke the API keys of a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO, TypeVar

from defserve.auth.api_keys import ApiKey, ApiKeys
from defserve.cli.parser import Parser
from defserve.errors import UsageError
from defserve.redaction import printable

T = TypeVar("T")

STORE: Final = "keys.json"
PRIVATE: Final = 0o600
STORE_HELP: Final = f"the file of the keys, or the address of a store: sqlite:///keys.db ({STORE})"
CREATE_EXAMPLES: Final = """  defserve keys create alice --allow 'ToolInvoke(add)' --allow ToolsListAll
  defserve keys create bob --allow 'ToolInvoke(*)' --out bob.key
  defserve keys create ci --allow 'ToolInvoke(*)' --expires 30d --per-minute 60 --per-hour 1000
"""
LIST_EXAMPLES: Final = """  defserve keys list
  defserve keys list --store sqlite:///keys.db --json
"""
REVOKE_EXAMPLES: Final = """  defserve keys revoke 1f2e3d4c5b6a7988
"""
ALLOW_HELP: Final = "a permission: ToolInvoke(TOOL), ToolRead(TOOL), ToolsListAll, AdminRead, AdminWrite; repeatable"

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
COLUMNS: Final = ("id", "principal", "created", "last used", "expires", "may", "rates")


def main(argv: list[str]) -> int:
    if argv and argv[0] in ACTIONS:
        return ACTIONS[argv[0]](argv[1:])
    parser = Parser(
        "defserve keys", "Make, list and revoke API keys.", CREATE_EXAMPLES + LIST_EXAMPLES + REVOKE_EXAMPLES
    )
    parser.add_argument("action", choices=ACTIONS, help="`defserve keys ACTION --help` says more")
    parser.parse_args(argv)
    return 1


def create(argv: list[str]) -> int:
    """`defserve keys create`. The key alone goes to stdout, for scripts to take."""
    parser = Parser("defserve keys create", "Make a key. It is shown now, and never again.", CREATE_EXAMPLES)
    parser.add_argument("principal", help="whose key it is")
    parser.add_argument("--allow", action="append", default=[], metavar="PERMISSION", help=ALLOW_HELP)
    parser.add_argument("--scope", action="append", default=[], metavar="SCOPE", help="a scope it holds; repeatable")
    parser.add_argument("--expires", type=_seconds, metavar="TIME", help="good for so long: 90s, 15m, 12h, 30d, 4w")
    parser.add_argument("--per-minute", type=_count, metavar="N", help="calls a minute, and at once")
    parser.add_argument("--per-hour", type=_count, metavar="N", help="calls an hour")
    parser.add_argument("--out", metavar="FILE", help="write the key into a new file that only you can read")
    _add_common(parser)
    options = parser.parse_args(argv)
    with _kept(options.out) as place:
        made = _on(
            options.store,
            lambda keys: keys.create(
                options.principal,
                permissions=options.allow,
                scopes=options.scope,
                expires_in=options.expires,
                per_minute=options.per_minute,
                per_hour=options.per_hour,
            ),
        )
        whole = json.dumps({"key": made.token, **_shown(made.key)}, indent=2)
        print(whole if options.json else made.token, file=place)
    if options.json:
        return 0
    who = made.key.principal
    told = f"The key of {who} is in {options.out}" if options.out else f"This is the key of {who}"
    print(f"{told}; it is not shown again.", file=sys.stderr)
    if not options.allow:
        print("It may not call any tool: revoke it and make one with --allow 'ToolInvoke(*)'.", file=sys.stderr)
    return 0


def show(argv: list[str]) -> int:
    """`defserve keys list`."""
    parser = Parser("defserve keys list", "Show the keys there are, without the keys themselves.", LIST_EXAMPLES)
    _add_common(parser)
    options = parser.parse_args(argv)
    keys = _on(options.store, ApiKeys.keys)
    if options.json:
        print(json.dumps([_shown(key) for key in keys], indent=2))
    else:
        print("\n".join(table(keys)) if keys else "There are no keys.")
    return 0


def revoke(argv: list[str]) -> int:
    """`defserve keys revoke`."""
    parser = Parser("defserve keys revoke", "Make a key good for nothing, at once.", REVOKE_EXAMPLES)
    parser.add_argument("id", help="what `defserve keys list` calls it: the part of the key before the dot")
    _add_common(parser)
    options = parser.parse_args(argv)
    id = options.id.partition(".")[0]
    if not _on(options.store, lambda keys: keys.revoke(id)):
        raise UsageError(f"there is no key {id!r} in {options.store}", fix="see defserve keys list")
    print(json.dumps({"revoked": id}) if options.json else f"{id} is revoked")
    return 0


ACTIONS: Final = {"create": create, "list": show, "revoke": revoke}


def table(keys: list[ApiKey]) -> Iterator[str]:
    """The keys for a terminal, line by line."""
    rows = [COLUMNS, *(tuple(map(printable, _row(key))) for key in keys)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(key: ApiKey) -> tuple[str, ...]:
    rates = ((key.per_minute, "min"), (key.per_hour, "h"))
    return (
        key.id,
        key.principal,
        _time(key.created_at) or "",
        _time(key.last_used) or "never",
        _time(key.expires_at) or "never",
        " ".join((*key.permissions, *key.scopes)) or "nothing",
        ", ".join(f"{count}/{unit}" for count, unit in rates if count),
    )


def _shown(key: ApiKey) -> dict[str, Any]:
    """All but the hash, which is nobody's business either."""
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
def _kept(path: str | None) -> Generator[TextIO]:
    """Where a key is written: stdout, or a file that is new, private, and gone again if no key is made."""
    if path is None:
        yield sys.stdout
        return
    try:
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", fix="name a file that is not there yet") from None
    try:
        with file:
            yield file
    except BaseException:
        os.unlink(path)
        raise


def _on(store: str, work: Callable[[ApiKeys], Awaitable[T]]) -> T:
    """Do something with the keys of a store, and let go of it."""

    async def run() -> T:
        keys = ApiKeys(store)
        try:
            return await work(keys)
        finally:
            await keys.close()

    return asyncio.run(run())


def _time(seconds: float | None) -> str | None:
    from time import gmtime, strftime

    return None if seconds is None else strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(seconds))


def _add_common(parser: Parser) -> None:
    parser.add_argument("--store", default=STORE, metavar="STORE", help=STORE_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is None or not int(found[1]):
        raise ArgumentTypeError(f"{text!r} is no time: write 90s, 15m, 12h, 30d or 4w")
    return float(int(found[1]) * SECONDS[found[2]])


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
