"""The definitions of a server in this process: what it lists, and what only its objects know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from defserve.protocols.mcp.apps.view import AppView
from defserve.protocols.mcp.items import Item
from defserve.protocols.mcp.skills.skill import SkillManifest
from defserve.protocols.mcpl.vocabulary import find_denied
from defserve.protocols.mgp.agreed import tool_security
from defserve.protocols.mgp.security.guarded_types import guards_of
from defserve.server.server import Server
from defserve.tooling.lint.definitions import (
    Definition,
    Definitions,
    FeatureSetUse,
    InjectingHook,
    ServedSkill,
    StateSchema,
    of_wire,
    parameters_of,
)
from defserve.tooling.listing import ServerListing

# Kind of item → the member of the wire that names it in its registry.
KINDS = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}


def of_server(server: Server, listed: ServerListing) -> Definitions:
    """The listed definitions of a server, with places, guards and feature sets."""
    found = of_wire(listed)
    items = tuple(_completed(item, _declared(server, item)) for item in found.items)
    live: Any = next((e for e in server.composition.extensions if e.name == "mcpl"), None)
    found = replace(found, items=items, skills=tuple(_skills(server)))
    return found if live is None else replace(found, **_live(live))


def _declared(server: Server, item: Definition) -> Item[Any] | None:
    mcp = server.mcp
    registries: dict[str, Any] = {
        "tool": mcp.tools.registry,
        "prompt": mcp.prompts.registry,
        "resource": mcp.resources.concrete,
        "template": mcp.resources.templates,
    }
    found = registries[item.kind].get(str(item.wire.get(KINDS[item.kind])))
    return found if isinstance(found, Item) else None  # pyright: ignore[reportUnknownVariableType]


def _completed(item: Definition, declared: Any) -> Definition:
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
    security = tool_security(declared)
    validators = security.security.validators if security is not None else ()
    judged = any(validator != "none" for validator in validators)
    in_types = guards_of(declared)
    # A validator that the author named checks its argument; registration made sure that there is one.
    named = judged and not in_types
    return replace(
        item,
        parameters=parameters_of(item.wire, lambda name: named or name in in_types),
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


def _live(mcpl: Any) -> dict[str, Any]:
    """What a server that acts on its own has declared."""
    hooks = mcpl.sections.hooks
    return {
        "feature_sets": tuple(FeatureSetUse(one.name, one.declares, tuple(find_denied(one.uses))) for one in mcpl.sets),
        "hooks": tuple(_hook(hook) for hook in (hooks.injecting if hooks is not None else ())),
        "states": tuple(
            StateSchema(states.name, states.model, states.values.schema(), states.chooses_integers)
            for states in mcpl.declared_states()
        ),
    }


def _hook(hook: Any) -> InjectingHook:
    signature = hook.function.signature
    return InjectingHook(hook.feature_set.name, hook.name, signature.where, signature.function)
