"""A server in this process, read for the rules: what it lists, and what only its own objects know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defserve.protocols.mcp.items import Item
from defserve.protocols.mgp.agreed import tool_security
from defserve.protocols.mgp.security.guarded_types import guards_of
from defserve.server.server import Server
from defserve.tooling.lint.definitions import Definition, Definitions, FeatureSetUse, of_wire, parameters_of
from defserve.tooling.listed import Listed

# Which registry knows an item of a kind, and by which member of the wire.
KINDS = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}


def of_server(server: Server, listed: Listed) -> Definitions:
    """The definitions of a server whose lists are known, with places, guards and feature sets."""
    found = of_wire(listed)
    items = tuple(_completed(item, _declared(server, item)) for item in found.items)
    return replace(found, items=items, feature_sets=tuple(_feature_sets(server)))


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
    item = replace(item, where=declared.where, function=declared.function.signature.function)
    if item.kind != "tool":
        return item
    security = tool_security(declared)
    validators = security.security.validators if security is not None else ()
    judged = any(validator != "none" for validator in validators)
    in_types = guards_of(declared)
    # A validator that the author named looks at what it is meant for, and registration made sure that it finds it.
    named = judged and not in_types
    return replace(
        item,
        parameters=parameters_of(item.wire, lambda name: named or name in in_types),
        trusts="none" in validators,
    )


def _feature_sets(server: Server) -> list[FeatureSetUse]:
    live: Any = next((e for e in server.composition.extensions if e.name == "mcpl"), None)
    return [FeatureSetUse(one.name, one.declares) for one in live.sets] if live is not None else []
