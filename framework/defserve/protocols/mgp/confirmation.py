"""MGP §4.4: who confirms a dangerous call. It depends on who calls, and on the server's `confirm` policy.

| peer | `auto` | `always` | `never` |
|---|---|---|---|
| local or authenticated, speaks MGP security | passes: the client confirms | asked, or refused | passes |
| the same, and says that a person has confirmed this call | passes, audited | asked, or refused | passes |
| local or authenticated, can be asked | asked | asked | passes |
| local or authenticated, cannot be asked | passes, audited: it is assumed to have asked its user | refused | passes |
| inside another call, which is all that its client sees | asked, or refused | asked, or refused | passes |
| called by a name that is not in its list, which tells the risk | asked, or refused | asked, or refused | passes |
| stranger (`auth.authority`), whatever it offers or answers | refused | refused | passes |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from defserve.auth.authority import REMEDY, is_stranger
from defserve.core.call import Call
from defserve.errors import Refused
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp.agreed import CONFIRMED_KEY, CalledAs, PersonalYes, sections
from defserve.wire.jsonvalue import is_array, is_object

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.audit.trail import AuditTrail
    from defserve.protocols.mgp.options import ConfirmPolicy

HEAD, TAIL = 1_000, 500
"""Characters of a longer value that a person is shown. What is left out is said."""
NAME_EDGES = 200, 50
"""The same, for the name of an argument."""
_BLANKS = re.compile(r"\s{40,}")
MAX_ARGUMENTS = 100
MAX_DEPTH = 12
"""How deep a schema is followed. What lies deeper is shown."""

FIX = "use a client that offers elicitation or MGP callbacks"


class NotConfirmed(Refused):
    """The call must be confirmed, and it was not."""

    error_type = "confirmation_required"


async def confirmed(
    policy: ConfirmPolicy, audit: AuditTrail, call: Call, tool: Tool, arguments: dict[str, Any]
) -> None:
    """Return when the call may go on. Raises NotConfirmed."""
    from defserve.protocols.mcp.asking import client_requests

    if policy == "never":
        return
    if call.outer is not None:
        policy = "always"  # what the client has shown its user, and may have confirmed, is another call
    if is_stranger(identity(call)):
        raise NotConfirmed(
            f"{tool.name} has to be confirmed, and a caller that nobody vouches for cannot do that: {REMEDY}",
            data={"fix": REMEDY},
        )
    is_known = policy != "auto" or _is_shown(call, tool)
    if policy == "auto" and is_known and "tool_security" in sections(call):
        return
    meta = call.params.get("_meta")
    if policy == "auto" and is_object(meta) and meta.get(CONFIRMED_KEY) is True:
        audit.report(call, "dev.defserve.confirmed_in_front", tool=tool.name, details={"by": "the client's user"})
        return
    if client_requests.can(call, "elicitation"):
        asked = question(tool.name, arguments, tool.function.arguments.schema, server_id=tool.server_id)
        if not await client_requests.confirm(call, asked, key=f"confirm:{tool.name}"):
            raise NotConfirmed(f"{tool.name} was not confirmed: the user said no; do not call it again unasked")
        call.local(PersonalYes)
        return
    if policy == "always" or not is_known:
        raise NotConfirmed(
            f"{tool.name} has to be confirmed, and this client cannot be asked: {FIX}", data={"fix": FIX}
        )
    audit.report(call, "dev.defserve.unconfirmed", tool=tool.name, details={"reason": "the client cannot be asked"})


def _is_shown(call: Call, tool: Tool) -> bool:
    """Whether the name that was called is in the list of this caller, which says what its tool may do."""
    from defserve.protocols.mcp.listing import is_listed

    renamed = call.peek(CalledAs)
    item = tool if renamed is None else renamed.item
    return item is not None and is_listed(call, "tools/list", item)


def question(
    name: str,
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    *,
    server_id: str | None = None,
    risk: str | None = None,
    instead_of: str | None = None,
) -> str:
    """What a person is asked, in our own words, by a server, a host and the command line alike: the tool by its listed
    name, the server that it belongs to, and its arguments on lines of their own, those of its `schema` first. A title
    would be the tool's own words.

    Only what the schema itself names like a secret is masked, and values of a secret's type. The look of a text, a
    value beside it, or a name that the caller chose would let a caller hide what is going to be done. What is too long
    is shown with its beginning, its end and the length of what is left out. No argument is shown as part of another.
    """
    from pydantic_core import to_jsonable_python

    from defserve.redaction import printable

    # Unknown objects have to be read by a person, so they become texts; those of a secret's type mask themselves.
    plain: dict[str, Any] = {
        key: to_jsonable_python(value, bytes_mode="base64", fallback=str) for key, value in arguments.items()
    }
    declared = _properties(schema, schema)
    order = sorted(plain, key=lambda key: key not in declared)
    shown: dict[str, Any] = _masked(plain, schema, schema, 0)
    lines = [
        f"  {printable(_shortened(key, *NAME_EDGES))}: {printable(_shortened(str(shown[key])))}"
        for key in order[:MAX_ARGUMENTS]
    ]
    if len(order) > MAX_ARGUMENTS:
        lines.append(f"  … and {len(order) - MAX_ARGUMENTS} more arguments that are not shown")
    whose = f" of server {server_id!r}" if server_id is not None else ""
    how = f" ({risk})" if risk is not None else ""
    why = f", because {printable(instead_of)} failed" if instead_of is not None else ""
    return "\n".join([f"Run {printable(name)}{whose}{how}{why}?", *lines])


def _masked(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """The value, without what its schema names like a secret."""
    from defserve.redaction import MASK, is_secret_field

    if depth > MAX_DEPTH:
        return value
    if is_array(value):
        items = _object(_resolved(schema, root).get("items"))
        return [_masked(each, items, root, depth + 1) for each in value]
    if not is_object(value):
        return value
    declared = _properties(schema, root)
    return {
        name: MASK
        if name in declared and is_secret_field(name, each)
        else _masked(each, _object(declared.get(name)), root, depth + 1)
        for name, each in value.items()
    }


def _properties(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The members that a schema declares; of several choices, those of the first that has any."""
    found = _resolved(schema, root)
    options: list[Any] = [found]
    for word in ("anyOf", "oneOf", "allOf"):
        if is_array(choices := found.get(word)):
            options += choices
    resolved = (_resolved(_object(option), root) for option in options)
    none: Mapping[str, Any] = {}
    return next((each for option in resolved if (each := _object(option.get("properties")))), none)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    where = schema.get("$ref")
    if not isinstance(where, str) or not where.startswith("#/$defs/"):
        return schema
    return _object(_object(root.get("$defs")).get(where.removeprefix("#/$defs/")))


def _object(value: Any) -> Mapping[str, Any]:
    return value if is_object(value) else {}


def _shortened(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    # Blanks would push what follows out of sight.
    text = _BLANKS.sub(lambda run: f"… ({len(run[0])} blanks) …", text)
    left_out = len(text) - head - tail
    return text if left_out <= 0 else f"{text[:head]}… ({left_out} characters are not shown) …{text[-tail:]}"
