"""The table of rules, applied to the definitions of a server: what they find is sorted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from defserve.binding.results import find_result_annotation
from defserve.protocols.mcp.apps import AppView
from defserve.protocols.mcp.items import Item
from defserve.protocols.mcp.skills import SkillManifest
from defserve.protocols.mcpl.vocabulary import MCPL_05, find_uses_denied_by_default
from defserve.protocols.mgp.guarded_types import find_tool_guards
from defserve.protocols.mgp.terms import get_tool_security
from defserve.server.server import Server
from defserve.tooling.lint import source_rules, wording_rules
from defserve.tooling.lint.definitions import (
    FeatureSetUse,
    InjectingHook,
    ItemDefinition,
    LintFinding,
    ServedSkill,
    ServerDefinitions,
    StateSchema,
    parse_tool_parameters,
    read_listed_definitions,
)
from defserve.tooling.listing import ServerListing

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class LintRule:
    """What a rule looks for, how serious it is, and the function that looks."""

    level: Level
    about: str
    look: Callable[[ServerDefinitions], Iterator[LintFinding]]


LINT_RULES: Final[dict[str, LintRule]] = {
    "missing-description": LintRule(
        "error", "a tool, resource or prompt without a description", wording_rules.find_missing_descriptions
    ),
    "missing-parameter-description": LintRule(
        "warning", "an argument without a description", wording_rules.find_undescribed_parameters
    ),
    "vague-name": LintRule("warning", "a name that does not say what the tool does", wording_rules.vague_names),
    "long-description": LintRule(
        "warning",
        f"a description of more than {wording_rules.MAX_DESCRIPTION_LENGTH} characters",
        wording_rules.find_long_descriptions,
    ),
    "hidden-characters": LintRule(
        "error", "invisible, direction or tag characters in what a model reads", wording_rules.find_hidden_text
    ),
    "prompt-injection": LintRule("error", "a text that gives the model orders", wording_rules.find_prompt_injections),
    "similar-tools": LintRule("warning", "two tools that a model could mix up", wording_rules.find_similar_tools),
    "invalid-schema": LintRule(
        "error", "a schema that is not valid, or has references to nothing", source_rules.find_invalid_schemas
    ),
    "schema-references": LintRule(
        "warning", "a schema with references, which some clients cannot follow", source_rules.find_schema_references
    ),
    "unenforced-pattern": LintRule(
        "warning", "an imported pattern that cannot be matched in linear time", source_rules.find_unenforced_patterns
    ),
    "deep-schema": LintRule(
        "warning",
        f"arguments nested more than {source_rules.MAX_SCHEMA_DEPTH} levels deep",
        source_rules.find_deep_schemas,
    ),
    "too-many-parameters": LintRule(
        "warning", f"more than {source_rules.MAX_PARAMETERS} arguments", source_rules.find_too_many_parameters
    ),
    "bytes-argument": LintRule(
        "warning", "an argument of type `bytes`, which is not decoded", source_rules.find_bytes_arguments
    ),
    "token-cost": LintRule(
        "warning",
        f"a list of tools of more than {source_rules.MAX_TOOL_LIST_TOKENS:,} tokens",
        source_rules.find_costly_tool_list,
    ),
    "unguarded-parameter": LintRule(
        "error", "a command, URL, path or code that nothing checks", wording_rules.find_unguarded_parameters
    ),
    "unmarked-danger": LintRule(
        "error", "a tool that destroys or runs things and has no mark", wording_rules.find_unmarked_tools
    ),
    "security-contradiction": LintRule(
        "error", "marks, annotations and name that disagree", wording_rules.find_wording_contradictions
    ),
    "text-beside-data": LintRule(
        "warning", "a text that tells what the structured content lacks", source_rules.find_texts_beside_data
    ),
    "forgotten-await": LintRule("error", "a call on the Context without `await`", source_rules.find_forgotten_awaits),
    "needless-await": LintRule(
        "error", "`await` before a call on the Context that gives nothing", source_rules.find_needless_awaits
    ),
    "unused-feature-set": LintRule(
        "warning", "a feature set with nothing declared on it", wording_rules.find_unused_sets
    ),
    "off-by-default": LintRule(
        "warning", "a feature set that MCPL hosts of 0.5 switch off by default", wording_rules.find_denied_sets
    ),
    "injected-orders": LintRule(
        "warning", "an injected text that gives the model orders", wording_rules.find_injected_orders
    ),
    "unnamed-origin": LintRule(
        "warning", "a URL in the HTML of a view that its csp does not name", source_rules.find_unnamed_origins
    ),
    "missing-view": LintRule("error", "a view whose HTML file does not exist", source_rules.find_missing_view_files),
    "big-integers": LintRule("warning", "a state whose integers may be past 2^53", wording_rules.find_big_integers),
    "sent-state": LintRule("warning", "an argument whose type is the model of a state", wording_rules.find_sent_states),
    "skill-private-file": LintRule(
        "error", "a file of a skill that is private, or has a secret in it", source_rules.find_private_skill_files
    ),
    "skill-hidden-characters": LintRule(
        "error", "such characters in the texts of a skill", source_rules.find_hidden_skill_characters
    ),
    "skill-format": LintRule("error", "frontmatter that clients may refuse", source_rules.find_malformed_skills),
    "skill-missing-file": LintRule(
        "warning", "a link in SKILL.md that leads nowhere", source_rules.find_missing_skill_files
    ),
    "skill-left-out": LintRule(
        "warning", "a file in the folder of a skill that is not served", source_rules.find_unserved_files
    ),
}


# -- Applies every rule and sorts what they find.


class RuleFinding(NamedTuple):
    """A finding, and the rule that made it."""

    rule: str
    level: Level
    finding: LintFinding

    def to_wire(self) -> dict[str, Any]:
        return {"rule": self.rule, "level": self.level, **self.finding._asdict()}


def run_lint_rules(found: ServerDefinitions, ignore: Collection[str] = ()) -> list[RuleFinding]:
    """What every rule that is not ignored finds; errors first, then in the order of the source."""
    made = [
        RuleFinding(name, rule.level, finding)
        for name, rule in LINT_RULES.items()
        if name not in ignore
        for finding in rule.look(found)
    ]
    return sorted(made, key=lambda complaint: (complaint.level, _place(complaint.finding.where)))


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line) if line.isdecimal() else 0


# -- The definitions of a server in this process: what it lists, and what only its objects know.


# Kind of item → the member of the wire that names it in its registry.
KINDS = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}


def read_server_definitions(server: Server, listed: ServerListing) -> ServerDefinitions:
    """The listed definitions of a server, with places, guards and feature sets."""
    found = read_listed_definitions(listed)
    items = tuple(_complete_definition(item, _find_declared_item(server, item)) for item in found.items)
    live: Any = next((e for e in server.composition.extensions if e.name == "mcpl"), None)
    found = replace(found, items=items, skills=tuple(_skills(server)))
    return found if live is None else replace(found, **_live(live))


def _find_declared_item(server: Server, item: ItemDefinition) -> Item[Any] | None:
    mcp = server.mcp
    registries: dict[str, Any] = {
        "tool": mcp.tools.registry,
        "prompt": mcp.prompts.registry,
        "resource": mcp.resources.concrete,
        "template": mcp.resources.templates,
    }
    found = registries[item.kind].get(str(item.wire.get(KINDS[item.kind])))
    return found if isinstance(found, Item) else None  # pyright: ignore[reportUnknownVariableType]


def _complete_definition(item: ItemDefinition, declared: Any) -> ItemDefinition:
    if declared is None:
        return item
    signature = declared.function.signature
    takes = {each.name: getattr(each.annotation, "__origin__", each.annotation) for each in signature.parameters}
    item = replace(item, where=declared.where, function=signature.function, takes=takes)
    if isinstance(declared, AppView):
        allowed: dict[str, list[str]] = declared.ui.get("csp", {})
        return replace(item, origins=tuple(origin for origins in allowed.values() for origin in origins))
    if item.kind != "tool":
        return item
    security = get_tool_security(declared)
    validators = security.security.validators if security is not None else ()
    judged = any(validator != "none" for validator in validators)
    in_types = find_tool_guards(declared)
    # A validator that the author named checks its argument; registration made sure that there is one.
    named = judged and not in_types
    return replace(
        item,
        returns=find_result_annotation(signature),
        text=declared.options.text,
        parameters=parse_tool_parameters(item.wire, lambda name: named or name in in_types),
        # What the framework offers by itself judges its arguments: code runs in a sandbox.
        trusts="none" in validators or str(item.function.__module__).startswith("defserve."),
    )


def _skills(server: Server) -> Iterator[ServedSkill]:
    section = server.mcp.skills
    for manifest in section.registry if section is not None else ():
        if not isinstance(manifest, SkillManifest):
            continue  # of a server elsewhere
        skill = manifest.skill
        data = {file.path: file.data for file in skill.folder.files}
        inner = tuple(path.removesuffix("SKILL.md") for path in data if path.endswith("/SKILL.md"))
        own = {path: content for path, content in data.items() if not path.startswith(inner)}
        left_out = tuple((path, reason) for path, reason in skill.folder.left_out if not path.startswith(inner))
        yield ServedSkill(skill.name, manifest.where, skill.frontmatter, own, data.keys(), left_out)


def _live(mcpl: MCPL) -> dict[str, Any]:
    """What a server that acts on its own has declared."""
    hooks = type(mcpl).hooks.get_existing_section(mcpl)
    return {
        "feature_sets": tuple(
            FeatureSetUse(
                one.name,
                one.declares,
                tuple(find_uses_denied_by_default(one.uses)),
                all(use in MCPL_05.lost for use in one.uses),
            )
            for one in mcpl.sets
        ),
        "hooks": tuple(_hook(hook) for hook in (hooks.hooks_before_inference if hooks is not None else ())),
        "states": tuple(
            StateSchema(states.name, states.model, states.values.schema(), states.chooses_integers)
            for states in mcpl.list_states()
        ),
    }


def _hook(hook: Any) -> InjectingHook:
    signature = hook.function.signature
    return InjectingHook(hook.feature_set.name, hook.name, signature.where, signature.function)
