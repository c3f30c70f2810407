"""MGP §4, §8.2: the security of a tool behind the kernel, from the operator's marks and what the server says itself.

How far a server is believed is its trust level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from defserve.client.mgp.peer import CallValidation, guess_validators
from defserve.client.mgp.server_claims import ListedToolSecurity, MgpClaims, parse_tool_security
from defserve.client.replies import filter_strings, object_or_empty
from defserve.kernel.config.entries import MgpEntry, OperatorToolMarks, ServerEntry
from defserve.protocols.mgp.security import STANDARD_VALIDATORS, Security, ToolSecurity
from defserve.protocols.mgp.terms import MGP_NAME, MGP_SECTIONS_BY_NAME
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS, SIDE_EFFECT_NAMES, RiskLevel, is_permission
from defserve.proxying.boundary import keep_warning_hints

if TYPE_CHECKING:
    from defserve.guard.network import Egress
    from defserve.protocols.mgp.security import ArgumentCheck
    from defserve.proxying.items import RemoteTool


NOTHING: Final = OperatorToolMarks()
DEFAULT: Final[RiskLevel] = "moderate"


def check_marks(entry: ServerEntry) -> None:
    """Raises UsageError for marks that contradict themselves, or name what does not exist."""
    for pattern, marks in _get_tool_marks(entry).items():
        _build_security(entry, marks, f"{entry.where} [servers.mgp.tools.{pattern!r}]")


def apply_security_marks(tool: RemoteTool, entry: ServerEntry) -> None:
    """Give a tool its security and its hints. Raises UsageError if they contradict each other."""
    marks = marks_for(entry, tool.inner)
    hints = object_or_empty(tool.raw.get("annotations"))
    if not is_trusted(entry):
        hints = keep_warning_hints(hints)
    listed = parse_tool_security(tool.inner, tool.raw)
    security = _security(entry, marks, listed)
    is_open = _is_open(object_or_empty(tool.raw.get("inputSchema")))
    check = _validation(listed, marks, believed=is_trusted(entry), is_open=is_open)
    if security is None and check is not None:
        security = Security(DEFAULT, where=entry.where)
    if security is not None:
        if check is not None and security.validator is None:
            security = replace(security, validator=_choose_listed_validator(listed))
        checks, is_enforced = () if check is None else (check,), check is not None or _restricts(security, marks)
        tool.facets[MGP_NAME] = ToolSecurity(security, checks, is_enforced=is_enforced)
        tool.is_dangerous = security.risk_level == "dangerous"
        derived = security.annotations() if marks is not NOTHING else keep_warning_hints(security.annotations())
        title = {"title": hints["title"]} if "title" in hints else {}
        hints = {**({} if marks is not NOTHING else hints), **derived, **title}
    tool.options = replace(
        tool.options,
        annotations=hints or None,
        tags=(*tool.options.tags, *marks.categories),
        keywords=(*tool.options.keywords, *marks.keywords),
    )


def marks_for(entry: ServerEntry, name: str) -> OperatorToolMarks:
    """The marks of the first pattern that matches the server's own name of a tool."""
    return next((marks for pattern, marks in _get_tool_marks(entry).items() if fnmatchcase(name, pattern)), NOTHING)


def _get_tool_marks(entry: ServerEntry) -> Mapping[str, OperatorToolMarks]:
    return entry.mgp.tools if entry.mgp is not None else dict[str, OperatorToolMarks]()


def _security(entry: ServerEntry, marks: OperatorToolMarks, listed: ListedToolSecurity) -> Security | None:
    """What is enforced, or None if nobody says anything."""
    if _says_security(marks):
        return _build_security(entry, marks, entry.where)
    needed = entry.mgp.permissions_required if entry.mgp is not None else ()
    if not (listed.security or needed or is_sandboxed(entry)):
        return None
    declared = [name for name in listed.permissions or () if is_permission(name)]
    permissions = tuple(dict.fromkeys((*needed, *declared)))
    risk: Any = listed.risk if listed.security else DEFAULT
    if risk == "safe" and (not is_trusted(entry) or _is_risky(permissions)):
        risk = DEFAULT
    effects = [
        name
        for name in filter_strings(listed.security.get("side_effects"))
        if name in SIDE_EFFECT_NAMES and risk != "safe"
    ]
    confirm, reversible = listed.confirmation_required, listed.security.get("reversible") is True or None
    if not is_trusted(entry):
        confirm, reversible = confirm or None, None
    return Security(
        risk,
        permissions,
        effects,
        reversible=reversible,
        confirm=True if is_sandboxed(entry) else confirm,
        where=entry.where,
    )


def _build_security(entry: ServerEntry, marks: OperatorToolMarks, where: str) -> Security:
    """The operator's marks. What the server as a whole needs, each of its tools needs."""
    server = entry.mgp.permissions_required if entry.mgp is not None else ()
    permissions = tuple(dict.fromkeys((*server, *marks.permissions)))
    risk: Any = marks.risk or DEFAULT
    if risk == "safe" and _is_risky(server):
        risk = DEFAULT
    confirm = True if marks.confirm is None and is_sandboxed(entry) else marks.confirm
    return Security(risk, permissions, marks.effects, marks.validator, marks.reversible, confirm, where=where)


def _says_security(marks: OperatorToolMarks) -> bool:
    return replace(marks, categories=(), keywords=()) != NOTHING


def _restricts(security: Security, marks: OperatorToolMarks) -> bool:
    """Whether a call has something to pass. A server that only calls its tool moderate or safe asks for nothing."""
    return (
        bool(security.permissions or security.confirmation_required)
        or security.risk_level == "dangerous"
        or _says_security(marks)
    )


def _is_risky(permissions: tuple[str, ...]) -> bool:
    return any(PERMISSION_RISKS.get(name, "moderate") != "safe" for name in permissions)


# -- validators ----------------------------------------------------------------------------------------------
def _validation(
    listed: ListedToolSecurity, marks: OperatorToolMarks, *, believed: bool, is_open: bool
) -> ArgumentCheck | None:
    """What looks at the arguments of each call. None: nothing does, because no name suggests it.

    A tool that is open does not say which arguments it takes, so every call of it is looked at.
    """
    named = marks.validator or listed.validator
    if marks.validator is None and named not in STANDARD_VALIDATORS and not (believed and named == "none"):
        named = None
    if named == "none":
        return None
    tool = listed._replace(security={"validator": named} if named is not None else {})
    if named is None and not is_open and not guess_validators(tool, dict.fromkeys(tool.properties, "")):
        return None
    validation = CallValidation({})

    async def check(egress: Egress | None, arguments: dict[str, Any]) -> None:
        await validation.check(tool, arguments, enforced=False)

    return check


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema does not say which arguments there are. One that allows none at all does."""
    says_none = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return "properties" not in schema and not says_none


def _choose_listed_validator(listed: ListedToolSecurity) -> str | None:
    """The validator that a list shows: the declared one, or the first that the names suggest."""
    if listed.validator in STANDARD_VALIDATORS:
        return listed.validator
    return next(iter(guess_validators(listed, dict.fromkeys(listed.properties, ""))), None)


# -- What a server that speaks MGP says of itself, beside what the file says of it (§2.3, §15.3).
#
# It can make the kernel more careful, never less: permissions are added, and a server that calls itself sandboxed is
# so, unless the file gives it a level.


USED = frozenset({"permissions", "tool_security", "lifecycle"})
"""The sections that the kernel asks servers for. Of others it knows only what the file says."""


def build_governing_entry(entry: ServerEntry, said: MgpClaims | None) -> ServerEntry:
    """The entry by which the tools of a server are governed."""
    if said is None or said.version is None:
        return entry
    mgp = entry.mgp or MgpEntry()
    level = mgp.trust_level or (said.trust_level if said.trust_level in SANDBOXED_TRUST_LEVELS else None)
    # A server whose tools say what each needs is believed that the others need nothing.
    needed = () if "tool_security" in said.sections else get_claimed_permissions(said)
    permissions = tuple(dict.fromkeys((*mgp.permissions_required, *needed)))
    if level == mgp.trust_level and permissions == mgp.permissions_required:
        return entry
    return replace(entry, mgp=replace(mgp, trust_level=level, permissions_required=permissions))


def get_tool_claims(said: MgpClaims | None) -> dict[str, Any]:
    """What a server says that the kernel acts on for each of its tools; see `build_governing_entry`."""
    if said is None or said.version is None:
        return {}
    claims = {
        "trust_level": said.trust_level,
        "permissions": sorted(get_claimed_permissions(said)),
        "tool_security": "tool_security" in said.sections,
    }
    return {name: value for name, value in claims.items() if value}


def get_claimed_permissions(said: MgpClaims) -> tuple[str, ...]:
    return tuple(name for name in said.permissions if is_permission(name))


def list_actual_extensions(entry: ServerEntry, said: MgpClaims) -> tuple[str, ...]:
    """The extensions of a server that runs: those of the file that it has, and those that the file does not know."""
    of_file = entry.mgp.extensions if entry.mgp is not None else ()
    kept = [name for name in of_file if not _is_refuted(name, said)]
    known = frozenset[str]().union(*(MGP_SECTIONS_BY_NAME.get(name, frozenset()) for name in kept))
    return (*kept, *(name for name in said.extensions if not MGP_SECTIONS_BY_NAME[name] <= known and name not in kept))


def find_contradictions(entry: ServerEntry, said: MgpClaims | None) -> Iterator[str]:
    """Where the file and the server differ, for people."""
    if entry.mgp is None or said is None:
        return
    for name in entry.mgp.extensions:
        if _is_refuted(name, said):
            yield f"the file says that it has the extension {name!r}, and it does not"
    if entry.mgp.permissions_required:
        for name in get_claimed_permissions(said):
            if name not in entry.mgp.permissions_required:
                yield f"it needs {name}, which the file does not say"


def _is_refuted(name: str, said: MgpClaims) -> bool:
    if said.version is None:
        return True
    sections = MGP_SECTIONS_BY_NAME.get(name, frozenset())
    return bool(sections) and sections <= USED and not sections & said.sections


# -- How far a server is believed: what its trust level means (MCP §9.2).


TRUSTED: Final = frozenset({"trusted", "core"})
SANDBOXED_TRUST_LEVELS: Final = frozenset({"sandboxed", "experimental", "untrusted"})


def get_trust_level(entry: ServerEntry) -> str:
    return (entry.mgp.trust_level if entry.mgp is not None else None) or "standard"


def is_trusted(entry: ServerEntry) -> bool:
    """Whether the operator has said that the server's own words about its tools are true."""
    return get_trust_level(entry) in TRUSTED


def is_sandboxed(entry: ServerEntry) -> bool:
    """Whether stricter rules hold for the server (§15.4)."""
    return get_trust_level(entry) in SANDBOXED_TRUST_LEVELS
