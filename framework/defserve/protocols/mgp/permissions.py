"""MGP §3 and §4.4: what may run. The permissions of a call, and who confirms a dangerous one.

A tool runs only if everything it needs is approved. The client decides last: its `denied` and `deferred` hold against
the operator's policy, and an expired approval counts as none. An anonymous client can give up permissions, but not
grant them. Grants live as long as the session. Without sessions they travel with each request, in `_meta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from defserve.auth.authority import AUTHENTICATION_HINT, is_stranger
from defserve.auth.principals import SCOPE_WILDCARD, format_invoke_scope
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.core.shapes import OBJECT, read_member
from defserve.errors import MAX_NAMES_IN_REFUSAL, LimitExceeded, MethodNotFound, Refused, UsageError
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import read_meta, read_object_param
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.terms import (
    CONFIRMED_META_KEY,
    ConfirmPolicy,
    PermissionPolicy,
    PersonConfirmedHere,
    RequestedToolMarker,
    SecurityOptions,
    get_call_sections,
    get_tool_security,
)
from defserve.protocols.mgp.vocabulary import (
    ANONYMOUS_DENIED_STATUS,
    CLIENT_DECISION_REASONS,
    GRANT_META_KEYS,
    GRANTED_STATUS,
    INSTANT_KIND,
    MAX_PERMISSIONS,
    OPERATOR_APPROVER,
    OPERATOR_DENIED_STATUS,
    PERMISSION_FAMILIES,
    PERMISSION_RISKS,
    REQUEST_ID_KIND,
    UNDECIDED_STATUS,
    PermissionRequest,
    PermissionStatus,
    build_permission_result,
    check_permission_name_bounds,
    choose_permission_event_type,
    decode_permission_status,
    encode_permission_status,
    expand_permission,
    parse_permission_decision,
    require_permission_name,
)

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.session import Session
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.audit import AuditTrail
    from defserve.protocols.mgp.extension import MGP


log = get_logger()

DECISION_MS = 2000
"""A person decides in this time, if at all soon. A client waits so long before it tries again."""


GRANT = "grant:"
"""How what is kept of a session is named."""


class SessionGrants(dict[str, dict[str, PermissionStatus]]):
    """What the client of a session has decided: credential → permission → status. It holds for that credential."""


class PermissionSection(Extension):
    """`mgp/permission/*`, and the gate before every tool that declares permissions. `clock` is the wall clock."""

    def __init__(self, options: SecurityOptions, audit: Callable[[], AuditTrail]) -> None:
        self._policy, self._audit, self.clock = options.permissions, audit, vocabulary.utc_now
        policies, granted = get_args(PermissionPolicy), options.granted
        if self._policy is not None and self._policy not in policies:
            raise UsageError(f"permissions={self._policy!r} is not a policy", fix=f"use one of {', '.join(policies)}")
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self._granted = frozenset(require_permission_name(name, "Server(granted=…)") for name in granted)

    def list_required_permissions(self, tools: Iterable[Tool]) -> list[str]:
        """Every permission that one of the tools needs."""
        needed = [found.security.permissions for tool in tools if (found := get_tool_security(tool)) is not None]
        return sorted(frozenset[str]().union(*needed))

    def check_permissions(self, call: Call, tool: Tool) -> None:
        """Raises PermissionDenied unless everything the tool needs is approved."""
        found = get_tool_security(tool)
        if found is None or not found.security.permissions:
            return
        statuses = self.find_permission_statuses(call, found.security.permissions, tool.server_id)
        missing = {name: status for name, status in statuses.items() if status.decision != "approved"}
        if missing:
            raise self._missing(call, tool, missing)
        sent = (
            [name for name, status in statuses.items() if status.by != OPERATOR_APPROVER] if _is_stateless(call) else []
        )
        if sent:
            self._audit().report_call_event(call, "PERMISSION_GRANTED", tool=tool.name, details={"permissions": sent})

    def list_dangers_granted_by_name(self, tool: Tool) -> list[str]:
        """The dangerous permissions of a tool, if the operator grants each of them by name and nothing else."""
        found = get_tool_security(tool)
        needed = found.security.permissions if found is not None and self._policy == "config_only" else ()
        dangers = sorted(name for name in needed if PERMISSION_RISKS.get(name) == "dangerous")
        # Others may be granted by the client, whose word is no operator's.
        return dangers if self._granted.issuperset(dangers) else []

    def find_permission_statuses(
        self, call: Call, names: Iterable[str], server_id: str | None = None
    ) -> dict[str, PermissionStatus]:
        """The status of each of these permissions now. `server_id` is the server behind this one that needs them."""
        decided, caller, now = self._find_decisions(call), identify_caller(call), self.clock()
        open_question = OPERATOR_DENIED_STATUS if self._policy == "deny_all" else UNDECIDED_STATUS
        found: dict[str, PermissionStatus] = {}
        for name in names:
            if (status := decided.get(name)) is None:
                status = GRANTED_STATUS if self._policy_grants(caller, name) else open_question
            elif status.expires_at is not None and status.expires_at <= now:
                expired = vocabulary.format_instant(status.expires_at)
                status = PermissionStatus("deferred", why=f"the client's decision expired at {expired}")
            found[name] = status
        return found

    # -- methods (§3.5, §3.6) ----------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/permission/request": self.request,
            "mgp/permission/await": self.request,
            "mgp/permission/grant": self.grant,
            "mgp/permission/response": self.grant,
        }

    def request(self, call: Call, params: Params) -> Params:
        """The status of the permissions a client names. Asking changes nothing.

        Approved is what somebody has granted: the client, or the operator by name or policy. Without either, known
        callers may use everything until their client denies it. That is no grant, so the answer is `deferred`.
        """
        asked = PermissionRequest.from_wire(params)
        statuses = self.find_permission_statuses(
            call, [permission for name in asked.permissions for permission in expand_permission(name)]
        )
        if self._policy is None:
            decided = self._find_decisions(call)
            statuses |= {
                name: UNDECIDED_STATUS for name in statuses if name not in decided and name not in self._granted
            }
        return asked.build_result(statuses)

    def grant(self, call: Call, params: Params) -> Params:
        """The client's decision, kept until the session ends. `approved_by` is always the caller, never from params."""
        if _is_stateless(call):
            raise MethodNotFound(
                f"{call.method}: nothing is remembered between requests; "
                f"send grants along as _meta[{GRANT_META_KEYS[0]!r}]"
            )
        id, sent = read_member(params, "request_id", REQUEST_ID_KIND, None), read_object_param(params, "grants")
        decisions = self._parse_grants(call, sent, read_member(params, "expires_at", INSTANT_KIND, None))
        kept = call.session.local(SessionGrants).setdefault(identify_caller(call).credential, {})
        if len(kept.keys() | decisions) > MAX_PERMISSIONS:
            raise LimitExceeded(
                f"more than {MAX_PERMISSIONS} permissions in one session", data={"limit": "permissions"}
            )
        before = self.find_permission_statuses(call, decisions)
        kept.update(decisions)
        call.session.mark_dirty()
        after = self.find_permission_statuses(call, decisions)
        self._report_changes(call, before, after)
        return ({} if id is None else {"request_id": id}) | build_permission_result(after, sent)

    def credential_ended(self, session: Session, credential: str) -> None:
        """Forget what was granted with a key or token that is no longer good."""
        if (kept := session.peek(SessionGrants)) is not None and kept.pop(credential, None) is not None:
            session.mark_dirty()

    def export_state(self, session: Session) -> Params:
        """What the client of a session has decided, for another process: a name for each decision."""
        grants = session.peek(SessionGrants) or SessionGrants()
        return {
            f"{GRANT}{name}\n{who}": encode_permission_status(each)
            for who, mine in grants.items()
            for name, each in mine.items()
        }

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has `kept`."""
        mine = {name.removeprefix(GRANT): value for name, value in kept.items() if name.startswith(GRANT)}
        if not mine and session.peek(SessionGrants) is None:
            return
        grants = session.local(SessionGrants)
        grants.clear()
        for name, value in mine.items():
            permission, _, credential = name.partition("\n")
            grants.setdefault(credential, {})[permission] = decode_permission_status(value)

    # -- who says what -----------------------------------------------------------------------------------

    def _policy_grants(self, caller: Principal, name: str) -> bool:
        policy = self._policy or ("config_only" if is_stranger(caller) else "operator")
        return policy == "operator" or (policy == "config_only" and name in self._granted)

    def _find_decisions(self, call: Call) -> Mapping[str, PermissionStatus]:
        if "permissions" not in get_call_sections(call):
            return {}
        if not _is_stateless(call):
            kept = call.session.peek(SessionGrants)
            return kept.get(identify_caller(call).credential, {}) if kept is not None else {}
        sent = read_meta(call.params)
        key = next((key for key in GRANT_META_KEYS if key in sent), GRANT_META_KEYS[0])
        grants = read_member(sent, key, OBJECT, None, label=f"_meta[{GRANT_META_KEYS[0]!r}]")
        return {} if grants is None else self._parse_grants(call, grants, None)

    def _parse_grants(self, call: Call, grants: Params, expires_at: datetime | None) -> dict[str, PermissionStatus]:
        """A client's grants by full permission name. A permission named in full takes precedence over its family."""
        caller, found = identify_caller(call), dict[str, PermissionStatus]()
        counts = not is_stranger(caller)
        check_permission_name_bounds(grants)
        for name in sorted(grants, key=PERMISSION_FAMILIES.__contains__, reverse=True):
            decision, until = parse_permission_decision(name, grants[name], expires_at)
            for meant in expand_permission(name):
                if counts or decision != "approved":
                    found[meant] = PermissionStatus(decision, caller.id, until, CLIENT_DECISION_REASONS[decision])
                elif self._policy_grants(caller, meant):
                    found[meant] = GRANTED_STATUS._replace(expires_at=until)
                else:
                    found[meant] = ANONYMOUS_DENIED_STATUS
        return found

    # -- telling -----------------------------------------------------------------------------------------

    def _missing(self, call: Call, tool: Tool, missing: Mapping[str, PermissionStatus]) -> PermissionDenied:
        told = "; ".join(f"{name}: {status.why}" for name, status in islice(missing.items(), MAX_NAMES_IN_REFUSAL))
        if len(missing) > MAX_NAMES_IN_REFUSAL:
            told += f"; and {len(missing) - MAX_NAMES_IN_REFUSAL} more"
        plural = "permissions" if len(missing) > 1 else "a permission"
        details = {"tool": tool.name, "missing": {name: status.decision for name, status in missing.items()}}
        remedy = self._remedy(call, tool, list(missing))
        is_denied = any(status.decision == "denied" for status in missing.values())
        if is_denied or is_stranger(identify_caller(call)) or "permissions" not in get_call_sections(call):
            return PermissionDenied(f"{tool.name} needs {plural} it does not have ({told}). {remedy}", details=details)
        # §3.6: a decision that is put off may still come, so this call may be tried again.
        return PermissionDenied(
            f"{tool.name} waits for a decision ({told}). {remedy} Then call it again.",
            details=details,
            retryable=True,
            retry_after_ms=DECISION_MS,
            retry_strategy="fixed_delay",
            max_retries=3,
        )

    def _remedy(self, call: Call, tool: Tool, names: list[str]) -> str:
        """What the caller can do. How the operator does it is for the operator alone."""
        is_unknown = is_stranger(identify_caller(call))
        if is_unknown or "permissions" not in get_call_sections(call):
            from defserve.guard.verdict import log_author_note

            how = ("" if is_unknown else 'permissions="config_only", ') + f"granted={names!r}"
            log_author_note(f"{tool.name} was refused for want of a permission; Server({how}) grants it")
            return f"Ask the operator for it, or {AUTHENTICATION_HINT}." if is_unknown else "The operator can grant it."
        if _is_stateless(call):
            return f"The client grants it by sending _meta[{GRANT_META_KEYS[0]!r}] along."
        return "The client grants it with mgp/permission/grant."

    def _report_changes(
        self, call: Call, before: Mapping[str, PermissionStatus], after: Mapping[str, PermissionStatus]
    ) -> None:
        events: dict[str, list[str]] = {}
        for name, status in after.items():
            if (event := choose_permission_event_type(before[name], status)) is not None:
                events.setdefault(event, []).append(name)
        for event, names in events.items():
            details: Params = {"permissions": names}
            if expiries := {
                name: vocabulary.format_instant(after[name].expires_at) for name in names if after[name].expires_at
            }:
                details["expires_at"] = expiries
            result = "DENIED" if event == "PERMISSION_DENIED" else "SUCCESS"
            self._audit().report_call_event(call, event, result=result, details=details)


def _is_stateless(call: Call) -> bool:
    return call.terms.offer is not None and call.terms.offer.stateless


# -- MGP §4.4: who confirms a dangerous call. It depends on who calls, and on the server's `confirm` policy.
#
# | peer | `auto` | `always` | `never` |
# |---|---|---|---|
# | local or authenticated, speaks MGP security | passes: the client confirms | asked, or refused | passes |
# | the same, and says that a person has confirmed this call | passes, audited | asked, or refused | passes |
# | local or authenticated, can be asked | asked | asked | passes |
# | local, cannot be asked | passes, audited: it is assumed to have asked its user | refused | passes |
# | on a network, cannot be asked, and a right names the tool | passes, audited with that right | refused | passes |
# | on a network, cannot be asked, and no right names the tool | refused | refused | passes |
# | stranger (`auth.authority`), whatever it offers or answers | refused | refused | passes |
#
# A client's own word does not count inside another call, which is all that it sees, nor for a name that is not in its
# list, which tells the risk. Then it is asked; if it cannot be asked, only a right that names the tool helps.


SHOWN_HEAD_LENGTH, SHOWN_TAIL_LENGTH = 1_000, 500
"""Characters of a longer value that a person is shown. What is left out is said."""
NAME_EDGES = 200, 50
"""The same, for the name of an argument."""
_BLANKS = re.compile(r"\s{40,}")
MAX_ARGUMENTS = 100
MAX_DEPTH = 12
"""How deep a schema is followed. What lies deeper is shown."""
MAX_CHOICES = 100
"""How many of the choices of one schema are looked at for members that are named like a secret."""

FIX = "use a client that offers elicitation or MGP callbacks"


class NotConfirmed(Refused):
    """The call must be confirmed, and it was not."""

    error_type = "confirmation_required"


async def confirm_call(
    mgp: MGP, call: Call, tool: Tool, arguments: dict[str, Any], policy: ConfirmPolicy | None = None
) -> None:
    """Return when the call may go on, by this policy or else the server's. Raises NotConfirmed."""
    from defserve.protocols.mcp.asking import client_requests

    policy, caller, name = policy or mgp.options.confirm, identify_caller(call), tool.name
    if policy == "never":
        return
    if is_stranger(caller):
        raise NotConfirmed(
            f"{name} has to be confirmed, and an unauthenticated caller cannot do that: {AUTHENTICATION_HINT}",
            data={"fix": AUTHENTICATION_HINT},
        )
    # What the client has shown its user, and may have confirmed, is the outermost call.
    believes_client = policy == "auto" and call.outer is None
    is_shown = believes_client and _is_shown(call, tool)
    if is_shown and "tool_security" in get_call_sections(call):
        return
    meta = call.params.get("_meta")
    if believes_client and is_object(meta) and meta.get(CONFIRMED_META_KEY) is True:
        mgp.audit.report_call_event(
            call, "dev.defserve.confirmed_in_front", tool=name, details={"by": "the client's user"}
        )
        return
    if client_requests.can_ask_client(call, "elicitation"):
        asked = format_confirmation_question(name, arguments, tool.function.arguments.schema, server_id=tool.server_id)
        if not await client_requests.ask_confirmation(call, asked, key=f"confirm:{name}"):
            raise NotConfirmed(f"{name} was not confirmed: the user said no; do not call it again unasked")
        call.local(PersonConfirmedHere)
        return
    fix = FIX
    if call.session.is_local:
        if is_shown:
            mgp.audit.report_call_event(
                call, "dev.defserve.unconfirmed", tool=name, details={"reason": "the client cannot be asked"}
            )
            return
    elif policy == "auto":
        if (right := find_right_naming_tool(mgp, caller, tool)) is not None:
            mgp.audit.report_call_event(call, "dev.defserve.confirmed_by_right", tool=name, details={"right": right})
            return
        log.info(
            "%s was refused to %s: its client cannot be asked, and no right names the tool. "
            'Server(confirm="never") lets every caller run dangerous tools unasked',
            name,
            caller.id,
        )
        fix += (
            f", or a key, token or access entry that names the tool: defserve keys create NAME --allow "
            f"'ToolInvoke({name})', or the scope {format_invoke_scope(name)}"
        )
    raise NotConfirmed(f"{name} has to be confirmed, and this client cannot be asked: {fix}", data={"fix": fix})


def find_right_naming_tool(mgp: MGP, caller: Principal, tool: Tool) -> str | None:
    """The operator's written yes to a dangerous tool: what gives this caller a right to it by name, for the audit.

    A wildcard is no yes, and neither is an entry for the whole server: whoever wrote it may not know of this tool.
    """
    scope = format_invoke_scope(tool.name)
    if scope in caller.scopes and SCOPE_WILDCARD not in scope:
        return scope
    if mgp.access is not None and mgp.access.has_tool_entry(caller, tool):
        return f"access entry of {caller.id}"
    if named := mgp.permissions.list_dangers_granted_by_name(tool):
        return f"granted: {', '.join(named)}"
    return None


def _is_shown(call: Call, tool: Tool) -> bool:
    """Whether the name that was called is in the list of this caller, which says what its tool may do."""
    from defserve.protocols.mcp.items import is_item_listed

    renamed = call.peek(RequestedToolMarker)
    item = tool if renamed is None else renamed.item
    return item is not None and is_item_listed(call, "tools/list", item)


def format_confirmation_question(
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

    from defserve.base.redaction import escape_unprintable

    # Unknown objects have to be read by a person, so they become texts; those of a secret's type mask themselves.
    plain: dict[str, Any] = {
        key: to_jsonable_python(value, bytes_mode="base64", fallback=str) for key, value in arguments.items()
    }
    declared = _properties(schema, schema)
    order = sorted(plain, key=lambda key: key not in declared)
    shown: dict[str, Any] = _mask_secrets(plain, schema, schema, 0)
    lines = [
        f"  {escape_unprintable(shorten_text(key, *NAME_EDGES))}: {escape_unprintable(shorten_text(str(shown[key])))}"
        for key in order[:MAX_ARGUMENTS]
    ]
    if len(order) > MAX_ARGUMENTS:
        lines.append(f"  … and {len(order) - MAX_ARGUMENTS} more arguments that are not shown")
    whose = f" of server {server_id!r}" if server_id is not None else ""
    how = f" ({risk})" if risk is not None else ""
    why = f", because {escape_unprintable(instead_of)} failed" if instead_of is not None else ""
    return "\n".join([f"Run {escape_unprintable(name)}{whose}{how}{why}?", *lines])


def _mask_secrets(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """The value, without what its schema names like a secret."""
    from defserve.base.redaction import REDACTION_MASK, is_secret_field

    if depth > MAX_DEPTH:
        return value
    if is_array(value):
        items = _object(_resolve_ref(schema, root).get("items"))
        return [_mask_secrets(each, items, root, depth + 1) for each in value]
    if not is_object(value):
        return value
    declared = _properties(schema, root)
    return {
        name: REDACTION_MASK
        if name in declared and is_secret_field(name, each)
        else _mask_secrets(each, _object(declared.get(name)), root, depth + 1)
        for name, each in value.items()
    }


def _properties(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The members that a schema declares; of several choices, those of the first that has any."""
    found = _resolve_ref(schema, root)
    options: list[Any] = [found]
    for word in ("anyOf", "oneOf", "allOf"):
        if is_array(choices := found.get(word)):
            # It is asked for each object of the arguments, and a mounted server may have written the schema.
            options += choices[:MAX_CHOICES]
    resolved = (_resolve_ref(_object(option), root) for option in options)
    none: Mapping[str, Any] = {}
    return next((each for option in resolved if (each := _object(option.get("properties")))), none)


def _resolve_ref(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    where = schema.get("$ref")
    if not isinstance(where, str) or not where.startswith("#/$defs/"):
        return schema
    return _object(_object(root.get("$defs")).get(where.removeprefix("#/$defs/")))


def _object(value: Any) -> Mapping[str, Any]:
    return value if is_object(value) else {}


def shorten_text(text: str, head: int = SHOWN_HEAD_LENGTH, tail: int = SHOWN_TAIL_LENGTH) -> str:
    """A text for a person who decides: a long one with its beginning, its end and the length of what is left out."""
    # Blanks would push what follows out of sight.
    text = _BLANKS.sub(lambda run: f"… ({len(run[0])} blanks) …", text)
    left_out = len(text) - head - tail
    return text if left_out <= 0 else f"{text[:head]}… ({left_out} characters are not shown) …{text[-tail:]}"
