"""What changed between two servers, and what breaks clients: a table of rules, and the comparison that finds them.

Both sides are what a server lists (`ServerListing`), or has listed. The order of lists does not matter.
Two listings have no change between them exactly if they say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from defserve.client.mgp.server_claims import RISKS_FROM_LOWEST, parse_tool_security
from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.tooling.listing import ServerListing, estimate_definition_tokens
from defserve.tooling.schema_compatibility import (
    NarrowingKind,
    find_narrowings,
    iter_properties,
    shorten_shown_text,
    sort_schema_sets,
    to_canonical_json,
)

DiffLevel: TypeAlias = Literal["breaking", "risky", "compatible"]
DIFF_LEVELS: Final[tuple[DiffLevel, ...]] = ("breaking", "risky", "compatible")
"""Worst first."""

MAX_CHANGES: Final = 2_000
MAX_NAME_LENGTH: Final = 120


class DiffRule(NamedTuple):
    """A kind of change. `text` says what happened: `{where}`, `{before}`, `{after}`. `reason` is why it matters."""

    level: DiffLevel
    text: str
    reason: str = ""


DIFF_RULES: Final[Mapping[str, DiffRule]] = {
    # -- Items: tools, resources, templates, prompts
    "removed": DiffRule("breaking", "is gone", "Clients that use it fail."),
    "renamed": DiffRule("breaking", "is called {after} now", "Clients still use the old name."),
    "added": DiffRule("compatible", "is new"),
    # -- What a client sends
    "parameter-removed": DiffRule(
        "breaking", "{where} is gone", "A call that sends it is refused, or what it asked for is ignored."
    ),
    "parameter-required": DiffRule(
        "breaking", "{where} is required now", "Calls without it were right, and are refused now."
    ),
    "parameter-narrowed": DiffRule(
        "breaking", "{where}: {before} → {after}", "Values that were right are refused now."
    ),
    "value-removed": DiffRule(
        "breaking", "{where} no longer takes {before}", "Calls with that value were right, and are refused now."
    ),
    "default-changed": DiffRule(
        "risky", "{where} without a value means {after}, was {before}", "Calls that leave it out do something else."
    ),
    "parameter-added": DiffRule("compatible", "{where} is new, and optional"),
    "parameter-optional": DiffRule("compatible", "{where} is optional now"),
    "parameter-widened": DiffRule("compatible", "{where}: {before} → {after}, which takes more"),
    "value-added": DiffRule("compatible", "{where} also takes {after}"),
    # -- What a client gets
    "result-removed": DiffRule(
        "breaking", "has no output schema any more", "Clients that read structured results find none."
    ),
    "result-widened": DiffRule(
        "breaking", "{where}: {before} → {after}", "Clients that trust the old schema are not prepared."
    ),
    "result-value-added": DiffRule(
        "breaking", "{where} may also be {after}", "Clients that know all values meet one they do not know."
    ),
    "field-removed": DiffRule("breaking", "{where} is gone", "It was always there; clients that read it find nothing."),
    "field-optional": DiffRule(
        "breaking", "{where} may be missing now", "It was always there; clients that read it may find nothing."
    ),
    "field-refused": DiffRule(
        "breaking", "{where} is new", "The old schema allows no other fields: clients that check results refuse them."
    ),
    "optional-field-removed": DiffRule("risky", "{where} is gone", "It may have been missing before, but not always."),
    "result-added": DiffRule("compatible", "has an output schema now"),
    "field-added": DiffRule("compatible", "{where} is new"),
    "field-always": DiffRule("compatible", "{where} is always there now"),
    "result-narrowed": DiffRule("compatible", "{where}: {before} → {after}, which is more exact"),
    # -- What a call needs
    "risk-raised": DiffRule(
        "breaking", "its risk is {after}, was {before}", "Hosts ask before such calls, or refuse them."
    ),
    "permission-needed": DiffRule("breaking", "needs {after}", "Callers without this permission are refused."),
    "confirmation-needed": DiffRule("breaking", "asks before each call", "Clients that cannot ask a person fail."),
    "task-required": DiffRule("breaking", "runs only as a task", "Clients that do not speak tasks fail."),
    "task-refused": DiffRule("breaking", "no longer runs as a task", "Clients that start it as one fail."),
    "risk-lowered": DiffRule("compatible", "its risk is {after}, was {before}"),
    "permission-dropped": DiffRule("compatible", "no longer needs {before}"),
    "confirmation-dropped": DiffRule("compatible", "no longer asks before each call"),
    # -- What models and people read
    "description-changed": DiffRule(
        "risky", "{where} is described differently", "Models go by it: they may use it for other things."
    ),
    "instructions-changed": DiffRule("risky", "has other instructions", "Models go by them in every conversation."),
    "hint-changed": DiffRule("risky", "{where} is {after}, was {before}", "Hosts decide by hints whether to ask."),
    "media-type-changed": DiffRule("risky", "is {after}, was {before}", "Clients may read it as what it was."),
    "title-changed": DiffRule("compatible", "is titled {after}, was {before}"),
    # -- The server
    "capability-removed": DiffRule("breaking", "no longer offers {before}", "Clients that use it fail."),
    "protocol-changed": DiffRule("risky", "speaks {after}, was {before}", "Clients may agree on another version."),
    "capability-added": DiffRule("compatible", "offers {after}"),
    "about-changed": DiffRule("compatible", "{where} is {after}, was {before}"),
    # -- The rest
    "not-compared": DiffRule("risky", "{where} is too large to compare", "Nobody knows whether it still fits."),
    "other-changed": DiffRule("compatible", "{where} changed"),
}


class ServerChange(NamedTuple):
    """One change. `kind` is tool, resource, template, prompt or server; `where` the place in it, if there is one."""

    rule: str
    kind: str
    name: str
    where: str = ""
    before: str = ""
    after: str = ""

    @property
    def level(self) -> DiffLevel:
        return DIFF_RULES[self.rule].level

    @property
    def reason(self) -> str:
        return DIFF_RULES[self.rule].reason

    def describe(self, show: Callable[[str], str] = str) -> str:
        """What happened, in a few words. `show` makes what the servers wrote fit for where it is shown."""
        values = {name: show(value) for name in ("where", "before", "after") if (value := getattr(self, name))}
        return DIFF_RULES[self.rule].text.format(**{"where": "it", "before": "not set", "after": "not set"} | values)

    def to_wire(self) -> dict[str, str]:
        about = {"level": self.level, **self._asdict(), "text": self.describe(), "reason": self.reason}
        return {name: value for name, value in about.items() if value}


class ServerSummary(NamedTuple):
    """One side of a comparison. `costs` are the tokens of each tool, about."""

    name: str
    version: str
    costs: Mapping[str, int]
    is_searched: bool

    @property
    def tokens(self) -> int:
        return sum(self.costs.values())

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "tools": len(self.costs), "tokens": self.tokens}


class ServerDiff(NamedTuple):
    """All that changed, the worst first. `left_out` is the number of changes beyond `MAX_CHANGES`."""

    before: ServerSummary
    after: ServerSummary
    changes: tuple[ServerChange, ...]
    left_out: int = 0

    @property
    def counts(self) -> dict[DiffLevel, int]:
        found = Counter(change.level for change in self.changes)
        return {level: found[level] for level in DIFF_LEVELS}

    def is_at_least(self, level: DiffLevel) -> bool:
        """Whether a change is as bad as `level`, or worse."""
        worst = DIFF_LEVELS[: DIFF_LEVELS.index(level) + 1]
        return any(change.level in worst for change in self.changes)

    def to_wire(self) -> dict[str, Any]:
        names = dict.fromkeys((*self.before.costs, *self.after.costs))
        costs = {name: (self.before.costs.get(name, 0), self.after.costs.get(name, 0)) for name in names}
        return {
            "before": self.before.to_wire(),
            "after": self.after.to_wire(),
            "counts": self.counts,
            "changes": [change.to_wire() for change in self.changes],
            **({"leftOut": self.left_out} if self.left_out else {}),
            "tokens": {name: {"before": was, "after": now} for name, (was, now) in sorted(costs.items()) if was != now},
        }


def compare_servers(before: ServerListing, after: ServerListing) -> ServerDiff:
    """What a client of `before` would meet at `after`."""
    found = sorted({*_compare_about(before, after), *_compare_lists(before, after)}, key=_rank)
    return ServerDiff(
        _summarize(before), _summarize(after), tuple(found[:MAX_CHANGES]), max(0, len(found) - MAX_CHANGES)
    )


def _rank(change: ServerChange) -> tuple[Any, ...]:
    return DIFF_LEVELS.index(change.level), KINDS.index(change.kind), change


def _summarize(listed: ServerListing) -> ServerSummary:
    costs = {_short(str(tool.get("name"))): estimate_definition_tokens(tool) for tool in listed.tools}
    name, version = (_short(str(listed.info.get(member) or "")) for member in ("name", "version"))
    return ServerSummary(name, version, costs, listed.is_searched)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"


# -- The server itself.


KINDS: Final = ("server", "tool", "resource", "template", "prompt")


def _compare_about(before: ServerListing, after: ServerListing) -> Iterator[ServerChange]:
    name = _short(str(after.info.get("name") or before.info.get("name") or "server"))

    def make(rule: str, where: str = "", was: Any = "", now: Any = "") -> ServerChange:
        return ServerChange(rule, "server", name, where, _say(was), _say(now))

    was, now = before.initialize, after.initialize
    if (was.get("instructions") or "") != (now.get("instructions") or ""):
        yield make("instructions-changed")
    if was.get("protocolVersion") != now.get("protocolVersion"):
        yield make("protocol-changed", "", was.get("protocolVersion"), now.get("protocolVersion"))
    for member in sorted({*before.info, *after.info}):
        if sort_schema_sets(old := before.info.get(member)) != sort_schema_sets(new := after.info.get(member)):
            is_plain = not any(is_object(one) or is_array(one) for one in (old, new))
            yield make("about-changed", member, old, new) if is_plain else make("other-changed", member)
    # Versions name some capabilities differently; these they all have.
    known = None if was.get("protocolVersion") == now.get("protocolVersion") else {"tools", "resources", "prompts"}
    gone, come = _set_change(_list_capabilities(before, known), _list_capabilities(after, known))
    yield from (make("capability-removed", was=one) for one in gone)
    yield from (make("capability-added", now=one) for one in come)
    dropped, needed = _set_change(*(one.mgp.get("permissions_required") for one in (before, after)))
    yield from (make("permission-needed", now=one) for one in needed)
    yield from (make("permission-dropped", was=one) for one in dropped)
    is_told = gone or come or dropped or needed or known is not None
    if not is_told and sort_schema_sets(before.capabilities) != sort_schema_sets(after.capabilities):
        yield make("other-changed", "capabilities")
    for member in sorted({*was, *now} - {"instructions", "protocolVersion", "serverInfo", "capabilities"}):
        if sort_schema_sets(was.get(member)) != sort_schema_sets(now.get(member)):
            yield make("other-changed", member)


def _list_capabilities(listed: ServerListing, known: set[str] | None) -> list[str]:
    """`resources` and `resources.subscribe`: two levels, which is where MCP has them. With `known`, only those."""
    found: list[str] = []
    for name, value in listed.capabilities.items():
        found.append(name)
        inside = value.items() if is_object(value) else ()
        found += [f"{name}.{below}" for below, one in inside if one is True or is_object(one)]
    return [name for name in found if known is None or name in known]


def _set_change(before: Any, after: Any) -> tuple[list[str], list[str]]:
    """What is only in the first, and what only in the second."""
    was, now = ({str(one) for one in side} if is_array(side) else set[str]() for side in (before, after))
    return sorted(was - now), sorted(now - was)


def _say(value: Any) -> str:
    return shorten_shown_text(value if isinstance(value, str) else "" if value is None else to_canonical_json(value))


# -- The lists.

# Kind → the list, and the member that names its items.
_LISTED: Final = {"tool": ("tools", "name"), "resource": ("resources", "uri")} | {
    "template": ("templates", "uriTemplate"),
    "prompt": ("prompts", "name"),
}
Json: TypeAlias = Mapping[str, Any]


def _compare_lists(before: ServerListing, after: ServerListing) -> Iterator[ServerChange]:
    for kind, (field, key) in _LISTED.items():
        was, now = ({str(item.get(key)): item for item in getattr(side, field)} for side in (before, after))
        gone = {name: was[name] for name in was.keys() - now.keys()}
        come = {name: now[name] for name in now.keys() - was.keys()}
        renamed = _find_renamed(gone, come, key)
        for name in gone:
            rule = "renamed" if name in renamed else "removed"
            yield ServerChange(rule, kind, _short(name), after=_short(renamed.get(name, "")))
        yield from (ServerChange("added", kind, _short(name)) for name in come.keys() - renamed.values())
        for name in was.keys() & now.keys():
            yield from _compare_items(kind, _short(name), was[name], now[name])


def _find_renamed(gone: Mapping[str, Json], come: Mapping[str, Json], key: str) -> dict[str, str]:
    """The old name → the new one, where exactly one item that is gone and one that is new say the same."""

    def sort_by_content(items: Mapping[str, Json]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, item in items.items():
            told = {member: value for member, value in item.items() if member not in (key, "title", "_meta", "icons")}
            if told.get("description"):
                found.setdefault(to_canonical_json(sort_schema_sets(told)), []).append(name)
        return found

    old, new = sort_by_content(gone), sort_by_content(come)
    return {old[told][0]: new[told][0] for told in old.keys() & new.keys() if len(old[told]) == len(new[told]) == 1}


def _compare_items(kind: str, name: str, was: Json, now: Json) -> Iterator[ServerChange]:
    if sort_schema_sets(was) == sort_schema_sets(now):
        return
    explained: set[str] = set()
    for member in sorted({*was, *now}):
        old, new = was.get(member), now.get(member)
        if member in _MEMBERS:
            for rule, where, before, after in _MEMBERS[member](old, new):
                explained.add(member)
                yield ServerChange(rule, kind, name, where, before, after)
    if kind == "tool":
        for rule, where, before, after in _compare_security(was, now):
            explained |= {"_meta", "security", "annotations"}
            yield ServerChange(rule, kind, name, where, before, after)
    for member in sorted({*was, *now} - explained):
        if sort_schema_sets(was.get(member)) != sort_schema_sets(now.get(member)):
            yield ServerChange("other-changed", kind, name, member)


# -- The members of an item.

Found: TypeAlias = Iterable[tuple[str, str, str, str]]
"""Rule, where, before, after."""


def _compare_text(rule: str, *, has_values: bool) -> Callable[[Any, Any], Found]:
    def compare(old: Any, new: Any) -> Found:
        if (old or "") != (new or ""):
            yield (rule, "", _say(old), _say(new)) if has_values else (rule, "", "", "")

    return compare


def _compare_execution(old: Any, new: Any) -> Found:
    was, now = (object_or_empty(side).get("taskSupport", "forbidden") for side in (old, new))
    if was != now and now == "required":
        yield "task-required", "", "", ""
    elif was != now and now == "forbidden":
        yield "task-refused", "", "", ""


def _compare_arguments(old: Any, new: Any) -> Found:
    """The arguments of a prompt."""
    was, now = (
        {str(one.get("name")): one for one in (side if is_array(side) else ()) if is_object(one)} for side in (old, new)
    )
    for name in was.keys() | now.keys():
        before, after, where = was.get(name), now.get(name), shorten_shown_text(name)
        if after is None:
            yield "parameter-removed", where, "", ""
        elif after.get("required") is True and not (before or {}).get("required"):
            yield "parameter-required", where, "", ""
        elif before is None:
            yield "parameter-added", where, "", ""
        elif before.get("required") is True and not after.get("required"):
            yield "parameter-optional", where, "", ""
        if before is not None and after is not None and before.get("description") != after.get("description"):
            yield "description-changed", where, "", ""


# A schema that takes less (its values before are refused), and one that takes more → the rule for each kind.
_INPUT_NARROWED: Final[Mapping[NarrowingKind, str]] = {
    **dict.fromkeys(("type", "limit", "form"), "parameter-narrowed"),
    **dict.fromkeys(("removed", "refused"), "parameter-removed"),
    "value": "value-removed",
    "required": "parameter-required",
    "unknown": "not-compared",
}
_INPUT_WIDENED: Final[Mapping[NarrowingKind, str]] = {
    **dict.fromkeys(("type", "limit", "form"), "parameter-widened"),
    **dict.fromkeys(("removed", "refused"), "parameter-added"),
    "value": "value-added",
    "required": "parameter-optional",
    "unknown": "not-compared",
}
_OUTPUT_NARROWED: Final[Mapping[NarrowingKind, str]] = {
    **dict.fromkeys(("type", "limit", "form", "value"), "result-narrowed"),
    **dict.fromkeys(("removed", "refused"), "optional-field-removed"),
    "required": "field-always",
    "unknown": "not-compared",
}
_OUTPUT_WIDENED: Final[Mapping[NarrowingKind, str]] = {
    **dict.fromkeys(("type", "limit", "form"), "result-widened"),
    "value": "result-value-added",
    "required": "field-optional",
    "removed": "field-added",
    "refused": "field-refused",
    "unknown": "not-compared",
}
_IMPLIED: Final = frozenset(("parameter-added", "parameter-widened", "result-narrowed", "field-added"))


def _compare_input(old: Any, new: Any) -> Found:
    yield from _judge_schema(old, new, _INPUT_NARROWED, _INPUT_WIDENED)
    was, now = (dict(iter_properties(side)) for side in (old, new))
    for path in was.keys() & now.keys():
        before, after = was[path], now[path]
        if (
            "default" in before
            and "default" in after
            and to_canonical_json(before["default"]) != to_canonical_json(after["default"])
        ):
            yield (
                "default-changed",
                path,
                shorten_shown_text(to_canonical_json(before["default"])),
                shorten_shown_text(to_canonical_json(after["default"])),
            )
        if (before.get("description") or "") != (after.get("description") or ""):
            yield "description-changed", path, "", ""


def _compare_output(old: Any, new: Any) -> Found:
    if old is None or new is None:
        if old is not new:
            yield "result-added" if old is None else "result-removed", "", "", ""
        return
    found = list(_judge_schema(old, new, _OUTPUT_NARROWED, _OUTPUT_WIDENED))
    gone = {where for rule, where, *_ in found if rule == "optional-field-removed"}
    always = {where for rule, where, *_ in found if rule == "field-optional"}
    for rule, where, before, after in found:
        yield ("field-removed", where, "", "") if where in gone & always else (rule, where, before, after)


def _judge_schema(
    old: Any, new: Any, narrowed: Mapping[NarrowingKind, str], widened: Mapping[NarrowingKind, str]
) -> Found:
    """What a schema takes less and more than before. What a breaking change of a place implies is not said again."""
    less = [(narrowed[one.kind], one.path, one.before, one.after) for one in find_narrowings(old, new)]
    more = [(widened[one.kind], one.path, one.after, one.before) for one in find_narrowings(new, old)]
    broken = {where for rule, where, *_ in (*less, *more) if DIFF_RULES[rule].level == "breaking"}
    for rule, where, before, after in (*less, *more):
        if rule not in _IMPLIED or where not in broken:
            yield rule, where, before, after


_MEMBERS: Final[Mapping[str, Callable[[Any, Any], Found]]] = {
    "inputSchema": _compare_input,
    "outputSchema": _compare_output,
    "description": _compare_text("description-changed", has_values=False),
    "title": _compare_text("title-changed", has_values=True),
    "mimeType": _compare_text("media-type-changed", has_values=True),
    "execution": _compare_execution,
    "arguments": _compare_arguments,
}


def _compare_security(was: Json, now: Json) -> Found:
    """The marks and hints of a tool."""
    old, new = (parse_tool_security("", dict(side)) for side in (was, now))
    if old.risk != new.risk:
        is_raised = RISKS_FROM_LOWEST.index(new.risk) > RISKS_FROM_LOWEST.index(old.risk)
        yield "risk-raised" if is_raised else "risk-lowered", "", old.risk, new.risk
    dropped, needed = _set_change(old.permissions, new.permissions)
    for name in needed:
        yield "permission-needed", "", "", _say(name)
    for name in dropped:
        yield "permission-dropped", "", _say(name), ""
    if bool(old.confirmation_required) != bool(new.confirmation_required):
        yield "confirmation-needed" if new.confirmation_required else "confirmation-dropped", "", "", ""
    hints, hint = (object_or_empty(side.get("annotations")) for side in (was, now))
    for name in sorted({*hints, *hint} - {"title"}):
        if _find_meaning(hints, name) != _find_meaning(hint, name):
            yield "hint-changed", shorten_shown_text(name), _say(hints.get(name)), _say(hint.get(name))


# What a hint means that is not given (MCP: ToolAnnotations).
_HINT_DEFAULTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


def _find_meaning(hints: Json, name: str) -> Any:
    """What a hint means to a client. A tool that only reads destroys nothing."""
    if name == "destructiveHint" and hints.get("readOnlyHint") is True:
        return False
    return hints.get(name, _HINT_DEFAULTS.get(name))
