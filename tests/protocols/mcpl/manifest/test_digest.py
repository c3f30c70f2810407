from __future__ import annotations

import base64
import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcpl.manifest import ManifestNotDigestible, compute_manifest_revision, find_changed_domains
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPL-05")

Json = dict[str, Any]

ONTOLOGY: Json = {
    "coreTags": ["chat:mention", "chat:dm"],
    "tags": {
        "acme:alert": {"desc": "An alert", "facet": "kind", "implies": ["acme:b", "acme:a"], "stability": "stable"}
    },
    "keyed": {"acme:priority": {"values": ["low", "high"]}},
    "suggestedTreatment": [{"tagsAny": ["acme:alert", "acme:a"], "treatment": "wake"}],
    "open": True,
}
MANIFEST: Json = {
    "version": "0.5",
    "pushEvents": True,
    "contextHooks": {"beforeInference": {"observe": True, "inject": {"system": True}}},
    "featureSets": {
        "memory.retrieval": {"description": "Retrieve", "uses": ["tools", "pushEvents"], "tagOntology": ONTOLOGY},
        "memory.other": {"description": "Other", "uses": ["tools"]},
    },
}


def changed(path: str, value: Any) -> Json:
    """The manifest with one member changed; with `...` it is left out."""
    copy: Any = json.loads(json.dumps(MANIFEST))
    *above, leaf = path.split("/")
    node = copy
    for name in above:
        node = node[name]
    if value is ...:
        del node[leaf]
    else:
        node[leaf] = value
    return copy


def test_the_digest_is_that_of_the_canonical_text():
    text = '{"featureSets":{"a":{"description":"é","uses":["pushEvents","tools"]}},"version":"0.5"}'
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    manifest = {"version": "0.5", "featureSets": {"a": {"uses": ["tools", "pushEvents"], "description": "é"}}}
    assert compute_manifest_revision(manifest) == f"sha256:{digest}" and len(digest) == 43


@given(st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_count(chance: random.Random):
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items: list[Any] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            chance.shuffle(items)
            return {name: shuffled(below) for name, below in items}
        return value

    other = shuffled(MANIFEST)
    uses = other["featureSets"]["memory.retrieval"]["uses"]
    other["featureSets"]["memory.retrieval"]["uses"] = chance.sample(uses * 2, 4)
    tag = other["featureSets"]["memory.retrieval"]["tagOntology"]["tags"]["acme:alert"]
    tag["implies"] = [*reversed(tag["implies"]), "acme:a"]
    assert compute_manifest_revision(other) == compute_manifest_revision(MANIFEST)
    assert find_changed_domains(MANIFEST, other) == []


SAME: list[tuple[str, Any]] = [
    ("revision", "sha256:wrong"),
    ("featureSets/memory.retrieval/tagOntology/coreTags", ["chat:dm", "chat:mention", "chat:dm"]),
]
OTHER: list[tuple[str, Any, list[str]]] = [
    ("version", "0.6", []),
    ("pushEvents", False, ["capabilities"]),
    ("pushEvents", ..., ["capabilities"]),
    ("vendor", None, ["capabilities"]),
    ("contextHooks/beforeInference", True, ["capabilities"]),
    ("contextHooks/revision", "nested", ["capabilities"]),
    ("featureSets", {}, ["featureSets", "tagOntology"]),
    ("featureSets", ..., ["featureSets", "tagOntology"]),
    ("featureSets/memory.other/uses", "tools", ["featureSets"]),
    ("featureSets/memory.other/uses", ["tools", 1], ["featureSets"]),
    ("featureSets/memory.other/tagOntology", {}, ["tagOntology"]),
    ("featureSets/memory.retrieval/tagOntology", ..., ["tagOntology"]),
    ("featureSets/memory.retrieval/tagOntology/keyed/acme:priority/values", ["high", "low"], ["tagOntology"]),
    ("featureSets/memory.retrieval/tagOntology/suggestedTreatment", [], ["tagOntology"]),
]


@for_each_row(("path", "value"), SAME)
def test_what_does_not_count(path: str, value: Any):
    assert compute_manifest_revision(changed(path, value)) == compute_manifest_revision(MANIFEST)


@for_each_row(("path", "value", "domains"), OTHER)
def test_what_counts_and_where(path: str, value: Any, domains: list[str]):
    other = changed(path, value)
    assert compute_manifest_revision(other) != compute_manifest_revision(MANIFEST)
    assert find_changed_domains(MANIFEST, other) == find_changed_domains(other, MANIFEST) == domains


def test_wrong_types_are_hashed_as_they_are():
    mixed = [{"featureSets": {"a": {"uses": uses}}} for uses in (["b", "a", 1], ["a", "b", 1], "ab", {"a": 1})]
    arrays = [{"featureSets": [{"name": "a", "uses": uses}]} for uses in (["b", "a"], ["a", "b"])]
    assert len({compute_manifest_revision(one) for one in [*mixed, *arrays]}) == 6
    assert find_changed_domains(*arrays) == ["featureSets"]


@for_each_row(
    "manifest",
    [
        [],
        None,
        "x",
        changed("bad name", True),
        changed("contextHooks/beforeInference/inject/höher", True),
        changed("featureSets/memory retrieval", {}),
        changed("featureSets/", {}),
        changed("featureSets/memory.other/uses", ["to ols"]),
        changed("featureSets/memory.retrieval/tagOntology/tags/acme alert", {}),
        changed("featureSets/memory.retrieval/tagOntology/tags/acme:alert/implies", ["a b"]),
        changed("featureSets/memory.retrieval/tagOntology/tags/acme:alert/facet", "a b"),
        changed("featureSets/memory.retrieval/tagOntology/keyed/acme:priority/values", ["a b"]),
        changed("featureSets/memory.retrieval/tagOntology/suggestedTreatment", [{"tagsNone": ["a b"]}]),
        changed("pushEvents", float("nan")),
    ],
    ids=lambda manifest: str(manifest)[-50:],
)
def test_what_has_no_digest(manifest: Any):
    with pytest.raises(ManifestNotDigestible):
        compute_manifest_revision(manifest)
