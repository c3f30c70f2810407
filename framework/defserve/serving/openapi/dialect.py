"""JSON Schema 2020-12 translated to OpenAPI 3.0. What OpenAPI cannot say is left out; the server still checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.wire.jsonvalue import as_list, is_array, is_mapping

Refer = Callable[[str], str]

# Keywords that mean the same in both.
SAME: Final = frozenset(
    """title description default enum format deprecated readOnly writeOnly multipleOf minimum maximum minLength
    maxLength pattern minItems maxItems uniqueItems minProperties maxProperties required""".split()
)
ANYTHING: Final[Mapping[str, Any]] = {}


def openapi_schema(schema: Any, refer: Refer) -> dict[str, Any]:
    """A schema in OpenAPI's dialect. `refer` translates local references."""
    if not is_mapping(schema):
        return {} if schema is not False else {"not": {}}
    if "$ref" in schema:
        # Beside a reference OpenAPI 3.0 ignores everything else.
        return {"$ref": refer(str(schema["$ref"]))}
    said: dict[str, Any] = {name: value for name, value in schema.items() if name in SAME}
    if said.get("enum") == [] or said.get("required") == []:
        said = {name: value for name, value in said.items() if value != []}
    if "const" in schema:
        said["enum"] = [schema["const"]]
    if is_array(schema.get("examples")) and schema["examples"]:
        said["example"] = schema["examples"][0]
    for keyword, translate in TRANSLATED.items():
        if keyword in schema:
            said |= translate(schema[keyword], said, refer)
    if said.get("type") == "array" and "items" not in said:
        said["items"] = {}
    return said


def _type(kinds: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
    named = [kind for kind in as_list(kinds) if kind != "null"]
    nullable = {"nullable": True} if len(named) < len(as_list(kinds)) else {}
    if not named:
        return {"enum": [None], **nullable}
    if len(named) == 1:
        return {"type": named[0], **nullable}
    # OpenAPI has no list of types. Keywords of one type do not affect the branches of the others.
    return {"anyOf": [{"type": kind, **({"items": {}} if kind == "array" else {})} for kind in named], **nullable}


def _branches(keyword: str) -> Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]:
    def translate(branches: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
        some = [branch for branch in branches if not (is_mapping(branch) and branch.get("type") == "null")]
        made: list[dict[str, Any]] = [openapi_schema(branch, refer) for branch in some]
        if len(some) == len(branches):
            return {keyword: made}
        if len(made) == 1 and "$ref" not in made[0]:
            return {**made[0], "nullable": True}
        # Nullable needs a type beside it, which a reference cannot have.
        return {keyword: [*made, {"enum": [None], "nullable": True}]}

    return translate


def _edge(bound: str) -> Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]:
    exclusive = f"exclusive{bound.capitalize()}"

    def translate(value: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
        inclusive = said.get(bound)
        tighter = inclusive is None or (value >= inclusive if bound == "minimum" else value <= inclusive)
        return {bound: value, exclusive: True} if tighter else {}

    return translate


def _each(schemas: Any, refer: Refer) -> dict[str, Any]:
    return {name: openapi_schema(schema, refer) for name, schema in schemas.items()}


TRANSLATED: Final[dict[str, Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]]] = {
    "type": _type,
    "exclusiveMinimum": _edge("minimum"),
    "exclusiveMaximum": _edge("maximum"),
    "properties": lambda value, said, refer: {"properties": _each(value, refer)},
    "additionalProperties": lambda value, said, refer: {
        "additionalProperties": value if isinstance(value, bool) else openapi_schema(value, refer)
    },
    "items": lambda value, said, refer: {"items": openapi_schema(value, refer)},
    # OpenAPI has no lists whose items have different kinds by position.
    "prefixItems": lambda value, said, refer: {"items": {}},
    "not": lambda value, said, refer: {"not": openapi_schema(value, refer)},
    "allOf": lambda value, said, refer: {"allOf": [openapi_schema(part, refer) for part in value]},
    "anyOf": _branches("anyOf"),
    "oneOf": _branches("oneOf"),
}
