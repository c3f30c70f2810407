"""The manifest (MCPL §5.1, 0.5 §8): what a server tells a host about MCPL, its digest, and telling that it changed.

A digest depends on the content alone, not on the order of members or on how often a use is listed. A change is told
once, and only if the digest has moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from defserve.core import json_values
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.core.session import Session
from defserve.protocols.mcpl.policies import McplTerms
from defserve.protocols.mcpl.vocabulary import MCPL_04, McplVocabulary

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.section import ChannelSection
    from defserve.protocols.mcpl.hooks import HookSection
    from defserve.protocols.mcpl.section import FeatureSetBase


def build_manifest(
    declared: Iterable[FeatureSetBase],
    hooks: HookSection | None,
    channels: ChannelSection | None,
    vocabulary: McplVocabulary,
    *,
    as_array: bool,
) -> Params:
    """What a host is told. `as_array`: it wants its feature sets as an array."""
    sets = [one for one in declared if one.whole]
    described = {one.name: wire for one in sets if (wire := one.to_wire(vocabulary))["uses"]}
    used = {use for one in sets for use in one.uses}
    by_grant = vocabulary.by_grant
    claims = (
        nest_capability_paths(vocabulary.translate_uses(used)) if by_grant else _build_claims_04(used, hooks, channels)
    )
    listed = [{"name": name, **wire} for name, wire in described.items()] if as_array else described
    manifest: Params = {"version": vocabulary.version, **claims, "featureSets": listed}
    if vocabulary.manifest:
        try:
            manifest["revision"] = compute_manifest_revision(manifest)
        except ManifestNotDigestible:
            pass  # hosts compare the content instead
    return manifest


def nest_capability_paths(paths: Iterable[str]) -> Params:
    """Capability paths as nested members; `true` claims everything below a member."""
    claims: Params = {}
    for path in paths:
        if path != "tools":  # MCP itself advertises them
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


def _build_claims_04(used: set[str], hooks: HookSection | None, channels: ChannelSection | None) -> Params:
    named = MCPL_04.translate_uses(used)
    parts: dict[str, Any] = {
        "pushEvents": "pushEvents" in named,
        "contextHooks": hooks and hooks.capability(),
        "inferenceRequest": "inferenceRequest" in named and {"streaming": True},
        "modelInfo": "modelInfo" in used,
        "channels": channels and channels.capability(),
    }
    return {name: part for name, part in parts.items() if part}


# -- MCPL 0.5 §8: `mcpl/manifestChanged`. A host that was told a manifest is told when another one has taken its place.


MANIFEST_CHANGED_METHOD = "mcpl/manifestChanged"


def notify_manifest_changed(session: Session, live: McplTerms, manifest: Callable[[], Params]) -> None:
    """Tell a host that its manifest has changed, if it has."""
    before, now = live.announced, manifest()
    if before is None or before == now:
        return
    live.announced = now
    if (revision := now.get("revision")) is None or revision == before.get("revision"):
        return
    try:
        domains = find_changed_domains(before, now)
    except ManifestNotDigestible:
        return
    session.notify(MANIFEST_CHANGED_METHOD, {"revision": revision, "domains": domains})


# -- MCPL 0.5 §8: the digest of a manifest, and which parts of two manifests differ.
#
# The root's `revision` is left out. Members that are sets (`uses`, `coreTags`, `implies`) are sorted, and lose what is
# repeated; every other list keeps its order. Members of the wrong type are hashed as they are.


DOMAINS: Final = ("capabilities", "featureSets", "tagOntology")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9._:*-]+")
_MATCHERS: Final = ("tagsAny", "tagsAll", "tagsNone")


class ManifestNotDigestible(ValueError):
    """A manifest has no digest: it is no object, or a name has other characters than letters, digits and `._:*-`."""


def compute_manifest_revision(manifest: Any) -> str:
    """The digest: `sha256:` and 43 characters. Raises ManifestNotDigestible."""
    from hashlib import sha256

    return f"sha256:{json_values.encode_base64url(sha256(canonical_manifest(manifest)).digest())}"


def canonical_manifest(manifest: Any) -> bytes:
    """What is hashed. Raises ManifestNotDigestible."""
    if not is_object(manifest):
        raise ManifestNotDigestible("a manifest must be an object")
    for name in _identifiers(manifest):
        if not _IDENTIFIER.fullmatch(name):
            raise ManifestNotDigestible(f"identifier_charset: {name!r:.80}")
    try:
        return encode_canonical_json(_normal(manifest))
    except ValueError as error:
        raise ManifestNotDigestible(str(error)) from None


def find_changed_domains(before: Params, after: Params) -> list[str]:
    """Which parts differ. A part that is missing differs from one that is empty. Raises ManifestNotDigestible."""
    old, new = _parts(before), _parts(after)
    return [domain for domain in DOMAINS if old[domain] != new[domain]]


def _parts(manifest: Params) -> dict[str, bytes]:
    canonical_manifest(manifest)  # only to refuse what has no digest
    normal = _normal(manifest)
    rest = {name: value for name, value in normal.items() if name not in ("version", "featureSets")}
    has_sets = "featureSets" in normal
    sets, ontologies = _without_ontology(normal.get("featureSets"))
    return {
        "capabilities": encode_canonical_json(rest),
        "featureSets": encode_canonical_json([sets] if has_sets else []),
        "tagOntology": encode_canonical_json(ontologies),
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
    normal = _sort_member(one, "uses")
    ontology = normal.get("tagOntology")
    if is_object(ontology):
        ontology = _sort_member(ontology, "coreTags")
        if is_object(tags := ontology.get("tags")):
            ontology["tags"] = {
                name: _sort_member(tag, "implies") if is_object(tag) else tag for name, tag in tags.items()
            }
        normal["tagOntology"] = ontology
    return normal


def _sort_member(found: Params, member: str) -> Params:
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


def _texts(value: Any) -> Iterable[str]:
    return value if _is_texts(value) else ()


# -- RFC 8785: the canonical text of a JSON value. The same value has the same bytes in every language.
#
# Numbers are written as ECMAScript writes doubles, and members are sorted by their UTF-16 code units. Python's own
# encoder does neither.


_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def encode_canonical_json(value: Any) -> bytes:
    """The canonical text. Raises ValueError for what has none: NaN, infinities, lone surrogates, other types."""
    return _text(value).encode()


def format_number(value: float) -> str:
    """A number as ECMAScript's Number::toString writes it. An integer past 2^53 becomes the nearest double."""
    try:
        given = float(value)
    except OverflowError:
        given = float("inf")
    if not isfinite(given):
        raise ValueError(f"{value!r:.40} is not a number of JSON")
    if given == 0:
        return "0"  # also for -0
    sign, magnitude = ("-", -given) if given < 0 else ("", given)
    # `repr` has the shortest digits that lead back to the same double, as ECMAScript wants. Only its layout differs.
    mantissa, _, exponent = repr(magnitude).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _laid_out(digits, point)


def _laid_out(digits: str, point: int) -> str:
    """The digits of 0.DIGITS × 10^point, by the rules of Number::toString."""
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return format_number(value)
    if is_array(value):
        return f"[{','.join(map(_text, value))}]"
    if is_object(value):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return f"{{{','.join(f'{_string(name)}:{_text(item)}' for name, item in members)}}}"
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _string(value: str) -> str:
    value.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
    escaped = _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", value)
    return f'"{escaped}"'
