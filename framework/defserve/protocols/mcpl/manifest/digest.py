"""MCPL 0.5 §8: the digest of a manifest, and which parts of two manifests differ.

The root's `revision` is left out. Members that are sets (`uses`, `coreTags`, `implies`) are sorted, and lose what is
repeated; every other list keeps its order. Members of the wrong type are hashed as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from defserve.protocols.mcpl.manifest.canonical import canonical
from defserve.wire import base64url
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

DOMAINS: Final = ("capabilities", "featureSets", "tagOntology")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9._:*-]+")
_MATCHERS: Final = ("tagsAny", "tagsAll", "tagsNone")


class NoDigest(ValueError):
    """A manifest has no digest: it is no object, or a name has other characters than letters, digits and `._:*-`."""


def revision(manifest: Any) -> str:
    """The digest: `sha256:` and 43 characters. Raises NoDigest."""
    from hashlib import sha256

    return f"sha256:{base64url.encode(sha256(canonical_manifest(manifest)).digest())}"


def canonical_manifest(manifest: Any) -> bytes:
    """What is hashed. Raises NoDigest."""
    if not is_object(manifest):
        raise NoDigest("a manifest must be an object")
    for name in _identifiers(manifest):
        if not _IDENTIFIER.fullmatch(name):
            raise NoDigest(f"identifier_charset: {name!r:.80}")
    try:
        return canonical(_normal(manifest))
    except ValueError as error:
        raise NoDigest(str(error)) from None


def changed_domains(before: Params, after: Params) -> list[str]:
    """Which parts differ. A part that is missing differs from one that is empty. Raises NoDigest."""
    old, new = _parts(before), _parts(after)
    return [domain for domain in DOMAINS if old[domain] != new[domain]]


def _parts(manifest: Params) -> dict[str, bytes]:
    canonical_manifest(manifest)  # only to refuse what has no digest
    normal = _normal(manifest)
    rest = {name: value for name, value in normal.items() if name not in ("version", "featureSets")}
    has_sets = "featureSets" in normal
    sets, ontologies = _without_ontology(normal.get("featureSets"))
    return {
        "capabilities": canonical(rest),
        "featureSets": canonical([sets] if has_sets else []),
        "tagOntology": canonical(ontologies),
    }


def _without_ontology(sets: Any) -> tuple[Any, list[Any]]:
    """The feature sets without their ontologies, and the ontologies, each with the set it belongs to."""
    if is_object(sets):
        entries = list(sets.items())
    elif is_array(sets):
        entries = list(enumerate(sets))
    else:
        return sets, []
    bare = {key: _without(one, "tagOntology") if is_object(one) else one for key, one in entries}
    told = {str(key): one["tagOntology"] for key, one in entries if is_object(one) and "tagOntology" in one}
    return bare if is_object(sets) else list(bare.values()), [[key, told[key]] for key in sorted(told)]


def _without(found: Params, member: str) -> Params:
    return {name: value for name, value in found.items() if name != member}


# -- sets ------------------------------------------------------------------------------------------------


def _normal(manifest: Params) -> Params:
    """The manifest without its revision, and with its sets sorted."""
    normal = _without(manifest, "revision")
    sets = normal.get("featureSets")
    if is_object(sets):
        normal["featureSets"] = {name: _normal_set(one) for name, one in sets.items()}
    return normal


def _normal_set(one: Any) -> Any:
    if not is_object(one):
        return one
    normal = _sorted_in(one, "uses")
    ontology = normal.get("tagOntology")
    if is_object(ontology):
        ontology = _sorted_in(ontology, "coreTags")
        if is_object(tags := ontology.get("tags")):
            ontology["tags"] = {
                name: _sorted_in(tag, "implies") if is_object(tag) else tag for name, tag in tags.items()
            }
        normal["tagOntology"] = ontology
    return normal


def _sorted_in(found: Params, member: str) -> Params:
    return {**found, member: sorted(set(found[member]), key=str.encode)} if _is_texts(found.get(member)) else {**found}


def _is_texts(value: Any) -> bool:
    return is_array(value) and all(isinstance(item, str) for item in value)


# -- names -----------------------------------------------------------------------------------------------


def _identifiers(manifest: Params) -> Iterator[str]:
    """Every name that must be an identifier."""
    for member, value in manifest.items():
        yield member
        if member not in ("version", "revision", "featureSets"):
            yield from _member_names(value)
    sets = manifest.get("featureSets")
    for name, one in sets.items() if is_object(sets) else ():
        yield name
        if is_object(one):
            yield from _texts(one.get("uses"))
            if is_object(ontology := one.get("tagOntology")):
                yield from _tag_names(ontology)


def _member_names(value: Any) -> Iterator[str]:
    for member, below in value.items() if is_object(value) else ():
        yield member
        yield from _member_names(below)


def _tag_names(ontology: Params) -> Iterator[str]:
    yield from _texts(ontology.get("coreTags"))
    tags, keyed = ontology.get("tags"), ontology.get("keyed")
    for name, tag in tags.items() if is_object(tags) else ():
        yield name
        if is_object(tag):
            yield from _texts(tag.get("implies"))
            if isinstance(facet := tag.get("facet"), str):
                yield facet
    for name, values in keyed.items() if is_object(keyed) else ():
        yield name
        yield from _texts(values.get("values") if is_object(values) else values)
    yield from _matchers(ontology)


def _matchers(value: Any) -> Iterator[str]:
    """What the rules of suggested treatments match."""
    if is_object(value):
        for member, below in value.items():
            yield from _texts(below) if member in _MATCHERS else _matchers(below)
    elif is_array(value):
        for item in value:
            yield from _matchers(item)


def _texts(value: Any) -> Iterator[str]:
    if _is_texts(value):
        yield from value
