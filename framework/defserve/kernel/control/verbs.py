"""What can be asked of a kernel, as a table: each verb and the fields that it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from inspect import isawaitable
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, cast

from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array, is_object


class Operations(Protocol):
    """What a kernel does for its operator. Ids that nobody knows raise UsageError with a suggestion."""

    def status(self) -> dict[str, Any]: ...
    def ps(self) -> list[dict[str, Any]]: ...
    def history(self) -> list[dict[str, Any]]: ...
    def logs(self, id: str | None, follow: bool) -> AsyncIterator[dict[str, Any]]: ...
    async def start(self, id: str) -> dict[str, Any]: ...
    async def stop(self, id: str, reason: str = "", timeout: float | None = None) -> dict[str, Any]: ...
    async def restart(self, id: str, now: bool = False) -> dict[str, Any]: ...
    async def reload(self) -> dict[str, Any]: ...
    async def approve(self, id: str, tool: str | None, digest: str, unseen: bool) -> list[dict[str, Any]]: ...
    async def search(self, query: str, top: int) -> list[dict[str, Any]]: ...
    async def health(self, id: str | None) -> list[dict[str, Any]]: ...
    def audit(self, last: int, follow: bool, verify: bool) -> AsyncIterator[dict[str, Any]]: ...


Fields: TypeAlias = Mapping[str, tuple[type, Any]]
"""The type of each field, and its value if it is left out. `...`: it may not be left out."""

ID: Final[Fields] = {"id": (str, ...)}
OPTIONAL_ID: Final[Fields] = {"id": (str, None)}
HELD: Final[Fields] = {"id": (str, ...), "tool": (str, None), "digest": (str, ""), "unseen": (bool, False)}
ENTRY: Final[Fields] = {"agent": (str, ...), "id": (str, ...), "tool": (str, None)}
VERBS: Final[Mapping[str, Fields]] = {
    "status": {},
    "ps": {},
    "history": {},
    "logs": {"id": (str, None), "follow": (bool, False)},
    "start": ID,
    "stop": ID,
    "restart": {**ID, "now": (bool, False)},
    "reload": {},
    "approve": HELD,
    "search": {"query": (str, ...), "top": (int, 5)},
    "health": OPTIONAL_ID,
    "audit": {"last": (int, 20), "follow": (bool, False), "verify": (bool, False)},
    "access list": {**OPTIONAL_ID, "agent": (str, None)},
    "access grant": {**ENTRY, "reason": (str, None), "until": (str, None), "force": (bool, False)},
    "access deny": {**ENTRY, "reason": (str, None), "until": (str, None), "force": (bool, False)},
    "access revoke": ENTRY,
    "permissions list": OPTIONAL_ID,
    "permissions approve": {**ID, "permission": (str, None), "reason": (str, "")},
    "permissions deny": {**ID, "permission": (str, None), "reason": (str, "")},
    "pins list": OPTIONAL_ID,
    "pins accept": HELD,
}
"""Each is a method of `Operations`. With two words it is the method of what the first one names."""


def answers(kernel: Operations, request: Any) -> AsyncIterator[Any]:
    """The answers to a request `{"verb": …, fields}`. Raises UsageError for one that is not made so."""
    if not is_object(request):
        raise UsageError("a request is an object", fix='send {"verb": "ps"}')
    fields = {**request}
    name = fields.pop("verb", None)
    known = VERBS.get(name) if isinstance(name, str) else None
    if known is None:
        raise UsageError(f"there is no verb {str(name)[:60]!r}", fix=f"use one of {', '.join(VERBS)}")
    given: dict[str, Any] = {}
    for field, (kind, default) in known.items():
        value = fields.pop(field, default)
        if value is ... or (value is not default and type(value) is not kind):
            raise UsageError(f"{name} needs {field}", fix=f"give {field}: a {kind.__name__}")
        given[field] = value
    if fields:
        raise UsageError(f"{name} has no {min(fields)!r}", fix=f"it takes {', '.join(known) or 'nothing'}")
    return _each(attrgetter(str(name).replace(" ", "."))(kernel)(**given))


def follows(request: Any) -> bool:
    """Whether the answers to a request only end when nobody wants more of them."""
    return is_object(request) and request.get("follow") is True


async def _each(result: Any) -> AsyncIterator[Any]:
    """What a method gives, one by one: it may be a value, a list, or something to wait for."""
    if isinstance(result, AsyncIterator):
        async for answer in cast("AsyncIterator[Any]", result):
            yield answer
        return
    found = await result if isawaitable(result) else result
    for answer in found if is_array(found) else (found,):
        yield answer
