"""MGP §4.4: who confirms a dangerous call. It depends on who calls, and on the server's `confirm` policy.

| peer | `auto` | `always` | `never` |
|---|---|---|---|
| local or authenticated, speaks MGP security | passes: the client confirms | asked, or refused | passes |
| the same, and says that a person has confirmed this call | passes, audited | asked, or refused | passes |
| local or authenticated, can be asked | asked | asked | passes |
| local or authenticated, cannot be asked | passes, audited: it is assumed to have asked its user | refused | passes |
| inside another call, which is all that its client sees | asked, or refused | asked, or refused | passes |
| stranger (`auth.authority`), whatever it offers or answers | refused | refused | passes |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.auth.authority import REMEDY, is_stranger
from defserve.core.call import Call
from defserve.errors import Refused
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp.agreed import CONFIRMED_KEY, PersonalYes, sections
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.audit.trail import AuditTrail
    from defserve.protocols.mgp.options import ConfirmPolicy

HEAD, TAIL = 1_000, 500
"""Characters of a longer value that a person is shown. What is left out is said."""

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
    if policy == "auto" and "tool_security" in sections(call):
        return
    meta = call.params.get("_meta")
    if policy == "auto" and is_object(meta) and meta.get(CONFIRMED_KEY) is True:
        audit.report(call, "dev.defserve.confirmed_in_front", tool=tool.name, details={"by": "the client's user"})
        return
    if client_requests.can(call, "elicitation"):
        if not await client_requests.confirm(call, question(tool, arguments), key=f"confirm:{tool.name}"):
            raise NotConfirmed(f"{tool.name} was not confirmed: the user said no; do not call it again unasked")
        call.local(PersonalYes)
        return
    if policy == "always":
        raise NotConfirmed(
            f"{tool.name} has to be confirmed, and this client cannot be asked: {FIX}", data={"fix": FIX}
        )
    audit.report(call, "dev.defserve.unconfirmed", tool=tool.name, details={"reason": "the client cannot be asked"})


def question(tool: Tool, arguments: dict[str, Any]) -> str:
    """What a person is asked, in our own words: the tool by its listed name, the server that it belongs to, and its
    arguments on lines of their own. Arguments with secret names are masked. A title would be the tool's own words.

    A text that looks like a secret is shown: else `token='…'` around it would hide what is going to be done.
    """
    from pydantic_core import to_jsonable_python

    from defserve.redaction import redact

    # Redaction turns an object into the name of its class. A person has to read the values, so they become texts first.
    plain = {name: to_jsonable_python(value, bytes_mode="base64", fallback=str) for name, value in arguments.items()}
    whole = {name: _shortened(value) if isinstance(value, str) else value for name, value in plain.items()}
    shown = redact(whole, by_look=False)
    lines = (
        f"  {name}: {value if isinstance(value, str) else _shortened(str(value))}" for name, value in shown.items()
    )
    whose = f" of server {tool.server_id!r}" if tool.server_id is not None else ""
    return "\n".join([f"Run {tool.name}{whose}?", *lines])


def _shortened(text: str) -> str:
    left_out = len(text) - HEAD - TAIL
    return text if left_out <= 0 else f"{text[:HEAD]}… ({left_out} characters are not shown) …{text[-TAIL:]}"
