"""What a kernel believes of a server's tools: their marks, and whether they are still what they were (pins).

Marks (MGP §4, §8.2) are the security of a tool, from what the operator says and what the server says itself. How far a
server is believed is its trust level.

A server may change what a tool says or takes after people began to trust it, so the digest of each definition is kept.
`on_change` of mgp.toml says what then happens: "allow" nothing, "warn" it is reported, "hold" nobody may use the tool
until an operator approves it.

The digest covers the whole definition as it is listed, and what the server claims for all of its tools: whatever the
kernel acts on or shows. `_meta` counts too, because the security of a tool is there. A server whose `_meta` differs
from list to list has tools that change from list to list.

What is kept of one server is bounded: see `MAX_NAMES` and `MAX_BYTES`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import unified_diff
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from defserve.base.hidden_characters import replace_hidden_characters
from defserve.client.mgp.peer import OutgoingCallValidators, guess_validators
from defserve.client.mgp.server_claims import ListedToolClaims, MgpClaims, parse_tool_security
from defserve.client.replies import Json, filter_strings, object_or_empty
from defserve.kernel.config.entries import MgpEntry, OperatorToolMarks, ServerEntry
from defserve.protocols.mgp.security import STANDARD_VALIDATORS, Security, ToolSecurity
from defserve.protocols.mgp.terms import MGP_NAME, MGP_SECTIONS_BY_NAME
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS, SIDE_EFFECT_NAMES, RiskLevel, is_permission_name
from defserve.proxying.boundary import keep_warning_hints

if TYPE_CHECKING:
    from defserve.guard.network import Egress
    from defserve.kernel.kernel_state import KernelState, StateFile
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


def _security(entry: ServerEntry, marks: OperatorToolMarks, listed: ListedToolClaims) -> Security | None:
    """What is enforced, or None if nobody says anything."""
    if _says_security(marks):
        return _build_security(entry, marks, entry.where)
    needed = entry.mgp.permissions_required if entry.mgp is not None else ()
    if not (listed.security or needed or is_sandboxed(entry)):
        return None
    declared = [name for name in listed.permissions or () if is_permission_name(name)]
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


# -- Validators of arguments.


def _validation(
    listed: ListedToolClaims, marks: OperatorToolMarks, *, believed: bool, is_open: bool
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
    validation = OutgoingCallValidators({})

    async def check(egress: Egress | None, arguments: dict[str, Any]) -> None:
        await validation.require_valid_call(tool, arguments, enforced=False)

    return check


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema does not say which arguments there are. One that allows none at all does."""
    says_none = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return "properties" not in schema and not says_none


def _choose_listed_validator(listed: ListedToolClaims) -> str | None:
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
    return tuple(name for name in said.permissions if is_permission_name(name))


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


# -- Pins: the digests of tools when they were first seen.


PinChange: TypeAlias = Literal["new", "changed", "outdated"]
"""`outdated`: an older version has pinned it, and did not look at all of it."""

MAX_COMPARED: Final = 10_000
"""Lines of two definitions that are compared. Longer ones are shown one after the other."""
MAX_SHOWN: Final = 256 * 1024
"""Characters of a difference that are shown. What is left out is said."""
DIGEST_LENGTH: Final = 64
"""The characters of a digest."""
MAX_NAMES: Final = 20_000
"""Tools of one server whose digests are kept: twice the longest list."""
MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of definitions of one server that are kept. Of others there is the digest."""
RULE: Final = "2:"
"""How the digests in the file begin. Those of version 0.1.0 have no mark; they left `_meta` out."""
TOOL, SERVER = "tool", "server"
"""The members of a kept definition: what is listed, and what its server claims."""
OUTDATED: Final = "(pinned by version 0.1.0, which did not look at `_meta`: read the whole definition)"
NO_TEXT: Final = "(only the digest of the earlier definition is known)"


def _encode_definition(raw: Json, claims: Json) -> bytes:
    """The same for equal definitions, in whatever order their members come."""
    return json.dumps({TOOL: raw, SERVER: claims}, sort_keys=True, separators=(",", ":")).encode()


class ToolPin(NamedTuple):
    """A definition by its digest. `raw` is None if only the digest was kept.

    `claims` is what its server says of all of its tools. `size` is that of the definition in bytes. Not `is_whole`, the
    digest is one of an older version, and no definition has it.
    """

    digest: str
    raw: Json | None = None
    claims: Json | None = None
    size: int = 0
    is_whole: bool = True

    @classmethod
    def from_definition(cls, raw: Json, claims: Json | None = None) -> ToolPin:
        encoded = _encode_definition(raw, claims or {})
        return cls(sha256(encoded).hexdigest(), raw, claims, len(encoded))

    @classmethod
    def from_file(cls, text: str, definition: Json | None) -> ToolPin:
        """A pin as the file has it. A definition that is not the pinned one is not believed."""
        if not text.startswith(RULE):
            return cls(text, definition, is_whole=False)
        digest = text.removeprefix(RULE)
        if definition is not None:
            found = cls.from_definition(object_or_empty(definition.get(TOOL)), object_or_empty(definition.get(SERVER)))
            if found.digest == digest:
                return found
        return cls(digest)

    def to_file(self) -> tuple[str, Json | None]:
        """The text of the pin, and its definition."""
        if not self.is_whole:
            return self.digest, self.raw
        definition: Json | None = None if self.raw is None else {TOOL: self.raw, SERVER: self.claims or {}}
        return RULE + self.digest, definition

    def is_same(self, other: ToolPin) -> bool:
        return self.digest == other.digest and self.is_whole == other.is_whole

    def without_text(self) -> ToolPin:
        return self._replace(raw=None, claims=None, size=0)


class Difference(NamedTuple):
    """What has changed, line by line. `left_out` is the number of lines that are not shown."""

    lines: list[str]
    left_out: int = 0


class HeldTool(NamedTuple):
    """A tool that is kept back: what it was when it was pinned (None: it is new), and what it is now."""

    name: str
    before: ToolPin | None
    now: ToolPin

    @property
    def change(self) -> PinChange:
        if self.before is None:
            return "new"
        return "changed" if self.before.is_whole else "outdated"

    def difference(self) -> Difference:
        """What has changed, as `diff -u` shows it. If it is not whole, the last line says so."""
        return _shorten(list(self._lines()))

    def _lines(self) -> Iterator[str]:
        if self.before is not None and not self.before.is_whole:
            yield OUTDATED
        elif self.before is not None and self.before.raw is None:
            yield NO_TEXT
        if self.before is not None and self.before.raw is None:
            yield from (f"+{line}" for line in _format_pin(self.now))
            return
        before, now = _format_pin(self.before) if self.before is not None else [], _format_pin(self.now)
        if len(before) + len(now) > MAX_COMPARED:
            yield from (f"+{line}" for line in now)
            yield from (f"-{line}" for line in before)
        else:
            yield from unified_diff(before, now, "pinned", "now", lineterm="", n=2)


def _shorten(lines: list[str]) -> Difference:
    """As much as fits, whole lines. A cut is said in words."""
    room = MAX_SHOWN
    for index, line in enumerate(lines):
        if len(line) > room:
            left_out = len(lines) - index
            said = f"… NOT ALL OF IT: {left_out} of {len(lines)} lines are not shown, or not whole"
            return Difference([*lines[:index], line[:room], said], left_out)
        room -= len(line)
    return Difference(lines)


class SeenPins:
    """The pins of one server, the one used last at the end, bounded: first texts are forgotten, then names.

    Those of `fixed` names, which are in the file, stay. `size` are the bytes of the definitions that are kept.
    """

    __slots__ = ("_pins", "fixed", "size")

    def __init__(self, pins: Mapping[str, ToolPin] | None = None) -> None:
        self.fixed: Collection[str] = frozenset(pins or ())
        self._pins = dict(pins or {})
        self.size = sum(pin.size for pin in self._pins.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._pins)

    def __len__(self) -> int:
        return len(self._pins)

    def get(self, name: str) -> ToolPin | None:
        """The pin of a tool, which is now the one used last."""
        if (pin := self._pins.pop(name, None)) is not None:
            self._pins[name] = pin
        return pin

    def items(self) -> list[tuple[str, ToolPin]]:
        return list(self._pins.items())

    def pop(self, name: str) -> ToolPin | None:
        if (pin := self._pins.pop(name, None)) is not None:
            self.size -= pin.size
        return pin

    def store_pin(self, name: str, pin: ToolPin) -> None:
        self.pop(name)
        self._pins[name] = pin
        self.size += pin.size
        if self.size > MAX_BYTES or len(self._pins) > MAX_NAMES:
            self._make_room()

    def _make_room(self) -> None:
        """Down to three quarters, so that this is not done for each tool."""
        for name in [name for name in self._pins if name not in self.fixed]:
            if self.size <= MAX_BYTES * 3 // 4:
                break
            pin = self._pins[name]
            self._pins[name] = pin.without_text()
            self.size -= pin.size
        surplus = len(self._pins) - MAX_NAMES * 3 // 4 if len(self._pins) > MAX_NAMES else 0
        for name in [name for name in self._pins if name not in self.fixed][: max(surplus, 0)]:
            self.pop(name)


class ToolPins:
    """The digests of the tools of all servers. A server is `settled` once its first list is known."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._held: defaultdict[str, SeenPins] = defaultdict(SeenPins)
        self._kept = _read_pins(state.known)
        self._seen = defaultdict(SeenPins, {id: SeenPins(pins) for id, pins in self._kept.items()})
        self._claims = {
            id: next((pin.claims for pin in pins.values() if pin.claims), None) for id, pins in self._kept.items()
        }
        self._settled = set(self._kept)

    def find_change(self, id: str, tool: str, pin: ToolPin) -> PinChange | None:
        """What has changed since the tool was pinned. None for the first list of a server."""
        known = self._seen[id].get(tool)
        if known is not None and known.is_same(pin):
            self._held[id].pop(tool)
            return None
        if known is not None:
            return "changed" if known.is_whole else "outdated"
        return "new" if id in self._settled else None

    def pin_tool(self, id: str, tool: str, pin: ToolPin) -> None:
        self._seen[id].store_pin(tool, pin)
        self._claims[id] = pin.claims

    def hold_tool(self, id: str, tool: str, pin: ToolPin) -> bool:
        """Keep a tool back. False if it was held as it is now."""
        held = self._held[id]
        was = held.get(tool)
        held.store_pin(tool, pin)
        return was is None or not was.is_same(pin)

    def drop_withdrawn_tool(self, id: str, tool: str) -> None:
        """The server does not offer this any more."""
        self._held[id].pop(tool)

    def list_held_names(self, id: str) -> list[str]:
        return sorted(self._held.get(id, ()))

    def list_held_tools(self, id: str) -> list[HeldTool]:
        """The held tools of a server, with what they were."""
        known, held = self._seen[id], self._held[id]
        return [HeldTool(name, known.get(name), pin) for name, pin in sorted(held.items())]

    def get_pinned_claims(self, id: str) -> Json:
        """What the server said of all its tools when the last one was pinned."""
        return self._claims.get(id) or {}

    def measure_pins(self, id: str) -> tuple[int, int]:
        """How many pins are kept of a server, and how many bytes of definitions."""
        tables = [table for table in (self._seen.get(id), self._held.get(id)) if table is not None]
        return sum(map(len, tables)), sum(table.size for table in tables)

    def approve(self, id: str, tools: Collection[str], *, keep: bool) -> None:
        """Pin held tools as they are now. With `keep`, that outlives the kernel: if it can't, raises OSError, and they
        are held still."""
        held = self._held[id]
        approved = {tool: pin for tool in tools if (pin := held.get(tool)) is not None}
        if keep:
            self._store_pins(id, approved, is_approved=True)
        for tool, pin in approved.items():
            held.pop(tool)
            self.pin_tool(id, tool, pin)

    def finish_listing(self, id: str, *, keep: bool) -> None:
        """The list of a server is known. With `keep`, its pins outlive the kernel. Raises OSError.

        Where another kernel has pinned a tool meanwhile, that counts.
        """
        self._settled.add(id)
        seen, kept = dict(self._seen[id].items()), self._kept.get(id)
        if keep and (kept is None or _digests(kept) != _digests(seen)):
            self._store_pins(id, seen)

    def _store_pins(self, id: str, new: Mapping[str, ToolPin], *, is_approved: bool = False) -> None:
        kept = self._kept.get(id)

        def change(state: KernelState) -> None:
            pins, definitions = state.pins.setdefault(id, {}), state.definitions.setdefault(id, {})
            for tool, pin in new.items():
                before = kept.get(tool) if kept is not None else None
                if is_approved or pins.get(tool) == (before.to_file()[0] if before is not None else None):
                    pins[tool], definition = pin.to_file()
                    if definition is not None:
                        definitions[tool] = definition

        self._state.update(change)
        self._kept = _read_pins(self._state.known)
        self._seen[id].fixed = frozenset(self._kept.get(id, ()))

    def refresh(self) -> list[str]:
        """Take over what other kernels have pinned. Returns the servers whose pins are others than before."""
        found = _read_pins(self._state.known)
        changed = [id for id, pins in found.items() if _digests(pins) != _digests(self._kept.get(id, {}))]
        for id in changed:
            self._settled.add(id)
            table = self._seen[id]
            table.fixed = frozenset(found[id])
            for name, pin in found[id].items():
                table.store_pin(name, pin)
        self._kept = found
        return changed

    def drop_server(self, id: str) -> None:
        """A server is gone for good. What was kept of it stays: it may come back."""
        self._held.pop(id, None)
        if id not in self._kept:
            self._seen.pop(id, None)
            self._claims.pop(id, None)
            self._settled.discard(id)


def _read_pins(state: KernelState) -> dict[str, dict[str, ToolPin]]:
    return {
        id: {tool: ToolPin.from_file(text, state.definitions.get(id, {}).get(tool)) for tool, text in pins.items()}
        for id, pins in state.pins.items()
    }


def digest_held_tools(held: Collection[HeldTool]) -> str:
    """Names several held tools as they are now."""
    return sha256(json.dumps(sorted((one.name, one.now.digest) for one in held)).encode()).hexdigest()


def _digests(pins: Mapping[str, ToolPin]) -> dict[str, str]:
    return {tool: pin.to_file()[0] for tool, pin in pins.items()}


def _format_pin(pin: ToolPin) -> list[str]:
    """Lines of JSON. Only JSON's own line ends make lines, and every character can be told from every other."""
    lines = _dump(pin.raw or {})
    return [*lines, "the server says of all its tools:", *_dump(pin.claims)] if pin.claims else lines


def _dump(value: Json) -> list[str]:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    return replace_hidden_characters(text, lambda one: one if one == "\n" else json.dumps(one)[1:-1]).split("\n")
