"""Two listings: what breaks clients is found by its rule, and nothing is found between two that say the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.tooling.listing import ServerListing
from defserve.tooling.server_diff import DIFF_LEVELS, DIFF_RULES, MAX_CHANGES, compare_servers
from tests.rows import for_each_row

TOOL: dict[str, Any] = {
    "name": "find",
    "description": "Find things.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to look for."},
            "order": {"enum": ["name", "age"], "default": "name"},
        },
        "required": ["text"],
    },
    "outputSchema": {
        "type": "object",
        "properties": {"found": {"type": "integer"}, "note": {"type": "string"}, "state": {"enum": ["all", "some"]}},
        "required": ["found"],
    },
    "annotations": {"readOnlyHint": True},
    "security": {"risk_level": "safe", "permissions_required": ["memory.read"], "validator": "none"},
}
PROMPT = {"name": "ask", "description": "Ask.", "arguments": [{"name": "mood", "required": True}, {"name": "length"}]}
RESOURCE = {"uri": "shop://stock", "name": "stock", "mimeType": "text/plain"}
OPENING = {
    "protocolVersion": "2025-11-25",
    "serverInfo": {"name": "shop", "version": "1"},
    "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}},
    "instructions": "Look first.",
}
WORLD = {"initialize": OPENING, "tools": [TOOL], "resources": [RESOURCE], "templates": [], "prompts": [PROMPT]}


def changed(path: str, value: Any = None) -> ServerListing:
    """The world with another value at a path; None takes it away. Without a path nothing is changed."""
    made = deepcopy(WORLD)
    at: Any = made
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split("/")] if path else [None]
    for step in steps:
        at = at[step]
    if last is not None and value is None:
        del at[last]
    elif last is not None:
        at[last] = value
    return ServerListing(**made)


def rules_between(before: ServerListing, after: ServerListing) -> set[str]:
    return {change.rule for change in compare_servers(before, after).changes}


PROPERTIES = "tools/0/inputSchema/properties"
FIELDS = "tools/0/outputSchema/properties"
# What is changed → its new value, the rule one way, and the rule the other way.
CHANGES: dict[str, tuple[Any, set[str], set[str]]] = {
    "tools/0": (None, {"removed"}, {"added"}),
    "tools/0/name": ("seek", {"renamed"}, {"renamed"}),
    "tools/0/title": ("Finder", {"title-changed"}, {"title-changed"}),
    "tools/0/description": ("Finds.", {"description-changed"}, {"description-changed"}),
    "tools/0/outputSchema": (None, {"result-removed"}, {"result-added"}),
    "tools/0/inputSchema/required": (["text", "order"], {"parameter-required"}, {"parameter-optional"}),
    f"{PROPERTIES}/order": (None, {"parameter-removed"}, {"parameter-added"}),
    f"{PROPERTIES}/order/enum": (["name"], {"value-removed"}, {"value-added"}),
    f"{PROPERTIES}/order/default": ("age", {"default-changed"}, {"default-changed"}),
    f"{PROPERTIES}/text/maxLength": (9, {"parameter-narrowed"}, {"parameter-widened"}),
    f"{PROPERTIES}/text/type": ("integer", {"parameter-narrowed"}, {"parameter-narrowed"}),
    f"{PROPERTIES}/text/description": ("It.", {"description-changed"}, {"description-changed"}),
    "tools/0/inputSchema/title": ("X", {"other-changed"}, {"other-changed"}),
    f"{FIELDS}/note": (None, {"optional-field-removed"}, {"field-added"}),
    f"{FIELDS}/found/type": ("number", {"result-widened"}, {"result-narrowed"}),
    f"{FIELDS}/state/enum": (["all", "some", "none"], {"result-value-added"}, {"result-narrowed"}),
    "tools/0/outputSchema/required": ([], {"field-optional"}, {"field-always"}),
    "tools/0/security/risk_level": ("dangerous", {"risk-raised"}, {"risk-lowered"}),
    "tools/0/security/permissions_required": (
        ["memory.read", "network.outbound"],
        {"permission-needed"},
        {"permission-dropped"},
    ),
    "tools/0/security/confirmation_required": (True, {"confirmation-needed"}, {"confirmation-dropped"}),
    "tools/0/annotations/openWorldHint": (False, {"hint-changed"}, {"hint-changed"}),
    "tools/0/annotations/destructiveHint": (True, {"other-changed"}, {"other-changed"}),
    "tools/0/execution": ({"taskSupport": "required"}, {"task-required"}, {"task-refused"}),
    "tools/0/icons": ([{"src": "data:,"}], {"other-changed"}, {"other-changed"}),
    "prompts/0/arguments/1/required": (True, {"parameter-required"}, {"parameter-optional"}),
    "prompts/0/arguments/1": (None, {"parameter-removed"}, {"parameter-added"}),
    "resources/0/mimeType": ("text/html", {"media-type-changed"}, {"media-type-changed"}),
    "resources/0": (None, {"removed"}, {"added"}),
    "initialize/instructions": ("Leap.", {"instructions-changed"}, {"instructions-changed"}),
    "initialize/capabilities/resources": (None, {"capability-removed"}, {"capability-added"}),
    "initialize/capabilities/resources/subscribe": (False, {"capability-removed"}, {"capability-added"}),
    "initialize/protocolVersion": ("2026-07-28", {"protocol-changed"}, {"protocol-changed"}),
    "initialize/serverInfo/version": ("2", {"about-changed"}, {"about-changed"}),
}


@for_each_row("path", CHANGES)
def test_a_change_is_found_by_its_rule_in_both_directions(path: str):
    value, there, back = CHANGES[path]
    was, now = changed(""), changed(path, value)
    assert rules_between(was, now) == there
    assert rules_between(now, was) == back


def test_every_rule_is_met_by_a_change():
    met = {rule for _, there, back in CHANGES.values() for rule in (*there, *back)}
    assert DIFF_RULES.keys() - met == {"field-refused", "field-removed", "not-compared"}
    gone = changed(f"{FIELDS}/found")
    gone.tools[0]["outputSchema"]["required"] = []
    assert rules_between(changed(""), gone) == {"field-removed"}
    closed = changed("tools/0/outputSchema/additionalProperties", False)
    more = deepcopy(closed)
    more.tools[0]["outputSchema"]["properties"]["extra"] = {}
    assert rules_between(closed, more) == {"field-refused"}
    deep: Any = {}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    assert rules_between(
        changed(f"{PROPERTIES}/text", deep), changed(f"{PROPERTIES}/text", {**deep, "maxItems": 1})
    ) == {"not-compared"}


def test_what_breaks_clients_says_why():
    assert [name for name, rule in DIFF_RULES.items() if rule.level != "compatible" and not rule.reason] == []


def test_there_is_no_change_between_two_that_say_the_same():
    found = compare_servers(changed(""), changed(""))
    assert found.changes == () and not found.is_at_least("compatible") and found.to_wire()["tokens"] == {}


@given(st.sampled_from(sorted(CHANGES)), st.randoms(use_true_random=False))
def test_order_never_matters(path: str, random: Any):
    now = changed(path, CHANGES[path][0])

    def shuffle(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = [(name, shuffle(below)) for name, below in value.items()]
            random.shuffle(pairs)
            return dict(pairs)
        made = [shuffle(below) for below in value] if isinstance(value, list) else value
        if isinstance(made, list):
            random.shuffle(made)
        return made

    mixed = ServerListing(*(shuffle(part) for part in now[:5]))
    assert compare_servers(changed(""), mixed).changes == compare_servers(changed(""), now).changes
    assert rules_between(now, mixed) == set()


def test_the_worst_comes_first_and_the_cost_of_each_tool_is_told():
    after = changed("tools/0/description", "Finds.")
    after.tools.append({**TOOL, "name": "lose", "inputSchema": {"type": "object"}})
    after.tools[0]["inputSchema"]["required"] = ["order"]
    found = compare_servers(changed(""), after)
    levels = [DIFF_LEVELS.index(change.level) for change in found.changes]
    assert levels == sorted(levels) and set(levels) == {0, 1, 2}
    assert found.is_at_least("breaking") and found.counts["breaking"] == 1
    wire = found.to_wire()
    assert wire["tokens"]["lose"]["before"] == 0 and wire["tokens"]["find"]["before"] > wire["tokens"]["find"]["after"]
    assert wire["changes"][0] == {
        "level": "breaking",
        "rule": "parameter-required",
        "kind": "tool",
        "name": "find",
        "where": "order",
        "before": "optional",
        "after": "required",
        "text": "order is required now",
        "reason": DIFF_RULES["parameter-required"].reason,
    }


def test_a_long_list_of_changes_is_cut_and_says_so():
    many = [{"name": f"tool{number}", "inputSchema": {}} for number in range(MAX_CHANGES + 5)]
    found = compare_servers(ServerListing({}, [], [], [], []), ServerListing({}, many, [], [], []))
    assert len(found.changes) == MAX_CHANGES and found.left_out == found.to_wire()["leftOut"] == 5


def test_a_tool_that_two_others_resemble_is_not_renamed():
    twins = [{**TOOL, "name": name} for name in ("one", "two")]
    assert rules_between(changed(""), ServerListing(OPENING, twins, [RESOURCE], [], [PROMPT])) == {"removed", "added"}
