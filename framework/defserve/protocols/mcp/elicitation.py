"""MCP elicitation (client features: elicitation): the flat forms a person is shown, from Python types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from defserve.errors import NoBackChannel, UsageError
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.wire.messages import Params

VALUE = "value"

_PRIMITIVES = {"string", "number", "integer", "boolean"}
_KEPT = {
    "type", "title", "description", "default", "enum", "enumNames", "oneOf", "minLength", "maxLength", "format",
    "minimum", "maximum", "minItems", "maxItems", "items",
}  # fmt: skip
_FORMATS = {"email", "uri", "date", "date-time"}


class Form:
    """A question's schema and how its answer becomes the author's type."""

    __slots__ = ("properties", "required", "parse")

    def __init__(self, properties: Params, required: list[str], parse: Callable[[Any], Any]) -> None:
        self.properties, self.required, self.parse = properties, required, parse

    @classmethod
    def of(cls, kind: Any) -> Form:
        """A form for a model, dataclass or TypedDict of primitives, for one primitive type, or for a JSON Schema."""
        if isinstance(kind, Mapping):
            schema: Params = dict(kind)  # pyright: ignore[reportUnknownArgumentType]
            return cls(_flat(schema, "the schema"), list(schema.get("required", ())), lambda value: value)
        from pydantic import TypeAdapter

        adapter = TypeAdapter[Any](kind)
        schema = adapter.json_schema()
        name = getattr(kind, "__name__", str(kind))
        if schema.get("type") == "object" and "properties" in schema:
            return cls(_flat(schema, name), list(schema.get("required", ())), adapter.validate_python)
        wrapped = {"type": "object", "properties": {VALUE: schema}, "$defs": schema.pop("$defs", {})}
        return cls(_flat(wrapped, name), [VALUE], lambda content: adapter.validate_python(content.get(VALUE)))

    def schema(self, dialect: Dialect) -> Params:
        """The form as a version of the protocol has it."""
        properties = {name: _gated(name, field, dialect) for name, field in self.properties.items()}
        schema: Params = {"type": "object", "properties": properties}
        if self.required:
            schema["required"] = self.required
        return schema


def _flat(schema: Params, owner: str) -> Params:
    definitions = schema.get("$defs", {})
    return {name: _field(name, field, definitions, owner) for name, field in schema.get("properties", {}).items()}


def _field(name: str, field: Params, definitions: Params, owner: str) -> Params:
    field = _resolved(field, definitions)
    if "const" in field and "type" not in field:
        field = {**field, "enum": [field["const"]]}
    if "enum" in field:
        field.setdefault("type", "string")
    kind = field.get("type")
    if kind == "array" and _is_choice(field.get("items", {})):
        pass
    elif kind not in _PRIMITIVES:
        raise UsageError(
            f"{owner}.{name} cannot be asked of a person: a form holds strings, numbers, booleans and choices",
            fix="ask for flat fields, or in several questions",
        )
    kept = {key: value for key, value in field.items() if key in _KEPT}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    if kept.get("default", 0) is None:
        del kept["default"]
    return kept


def _resolved(field: Params, definitions: Params) -> Params:
    """`$ref` followed, and `T | None` read as an optional T."""
    if "$ref" in field:
        target = definitions[field["$ref"].rpartition("/")[2]]
        field = {**target, **{key: value for key, value in field.items() if key != "$ref"}}
    if "items" in field and "$ref" in field["items"]:
        field = {**field, "items": _resolved(field["items"], definitions)}
    options = field.get("anyOf")
    if isinstance(options, list):
        real: list[Params] = [o for o in options if o.get("type") != "null"]  # pyright: ignore
        if len(real) == 1:
            rest = {key: value for key, value in field.items() if key != "anyOf"}
            return _resolved({**real[0], **rest}, definitions)
    return dict(field)


def _is_choice(items: Params) -> bool:
    return "enum" in items or "anyOf" in items or "oneOf" in items


def _gated(name: str, field: Params, dialect: Dialect) -> Params:
    if "elicitation_enums" not in dialect.has:
        if field.get("type") == "array":
            raise NoBackChannel(f"this client cannot be asked for several choices ({name})")
        if "oneOf" in field:
            field = {key: value for key, value in field.items() if key != "oneOf"} | {
                "enum": [option["const"] for option in field["oneOf"]],
                "enumNames": [option.get("title", option["const"]) for option in field["oneOf"]],
            }
    if "elicitation_defaults" not in dialect.has and field.get("type") != "boolean":
        field = {key: value for key, value in field.items() if key != "default"}
    return field
