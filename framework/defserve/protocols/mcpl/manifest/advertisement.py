"""MCPL §5.1: `experimental.mcpl`, as a host of some version reads it. It follows from what was declared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from defserve.protocols.mcpl.manifest.digest import NoDigest, revision
from defserve.protocols.mcpl.vocabulary import V04, Vocabulary
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section_registry import Sections

# MCP itself advertises the tools.
OUTSIDE = "tools"


def advertised(sections: Sections, vocabulary: Vocabulary, *, as_array: bool) -> Params:
    """What a host is told. `as_array`: it wants its feature sets as an array."""
    sets = [one for one in sections.server.sets if one.whole]
    described = {one.name: wire for one in sets if (wire := one.wire(vocabulary))["uses"]}
    used = {use for one in sets for use in one.uses}
    claims = claimed(vocabulary.spelled(used)) if vocabulary.by_grant else _claimed_04(sections, used)
    listed = [{"name": name, **wire} for name, wire in described.items()] if as_array else described
    manifest: Params = {"version": vocabulary.version, **claims, "featureSets": listed}
    if vocabulary.manifest:
        try:
            manifest["revision"] = revision(manifest)
        except NoDigest:
            pass  # hosts compare the content instead
    return manifest


def claimed(paths: Iterable[str]) -> Params:
    """Capability paths as nested members; `true` claims everything below a member."""
    claims: Params = {}
    for path in paths:
        if path != OUTSIDE:
            *above, leaf = path.split(".")
            node = claims
            for name in above:
                if not isinstance(node.get(name), dict):
                    node[name] = {}
                node = node[name]
            node.setdefault(leaf, True)
    if claims.get("inferenceRequest") is True:  # `true` would claim streaming, too
        claims["inferenceRequest"] = {"streaming": False}
    return claims


def _claimed_04(sections: Sections, used: set[str]) -> Params:
    named = V04.spelled(used)
    parts: dict[str, Any] = {
        "pushEvents": "pushEvents" in named,
        "contextHooks": sections.hooks and sections.hooks.capability(),
        "inferenceRequest": "inferenceRequest" in named and {"streaming": True},
        "modelInfo": "modelInfo" in used,
        "channels": sections.channels and sections.channels.capability(),
    }
    return {name: part for name, part in parts.items() if part}
