"""MCP elicitation (client features: elicitation): the flat forms a person is shown, from Python types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from defserve.errors import BadArguments, NoBackChannel, UsageError
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.wire.jsonvalue import is_mapping
from defserve.wire.messages import Params

VALUE = "value"

_PRIMITIVES = {"string", "number", "integer", "boolean"}
_KEPT = {
    "type", "title", "description", "default", "enum", "enumNames", "oneOf", "minLength", "maxLength", "format",
    "minimum", "maximum", "minItems", "maxItems", "items",
}  # fmt: skip
_ITEMS = {"type", "enum", "anyOf"}
_FORMATS = {"email", "uri", "date", "date-time"}


class Form:
    """A question's schema and how its answer becomes the author's type.

    `parse` raises ValueError. It sees no field the form does not have, and none that was left blank.
    """

    __slots__ = ("properties", "required", "_parse")

    def __init__(self, properties: Params, required: list[str], parse: Callable[[Params], Any]) -> None:
        self.properties, self.required, self._parse = properties, required, parse

    @classmethod
    def of(cls, kind: Any) -> Form:
        """A form for a model, dataclass or TypedDict of primitives, for one primitive type, or for a JSON Schema."""
        if is_mapping(kind):
            return _of_schema({"type": "object", **kind})
        from pydantic_core import to_json

        from defserve.binding.arguments import models
        from defserve.binding.arguments.fail_fast import argument_validator
        from defserve.binding.arguments.schema import UnusablePattern, refuse_core_patterns

        adapter = models.adapter(kind)
        try:
            refuse_core_patterns(adapter.core_schema)
        except UnusablePattern as error:
            raise UsageError(f"question: {error.problem}", fix=error.fix) from None
        # The adapter's own would match a text of any length.
        validate = argument_validator(adapter).validate_json
        schema = adapter.json_schema(schema_generator=models.TitlelessJsonSchema)
        name = getattr(kind, "__name__", str(kind))
        if "properties" not in schema:
            wrapped = {"properties": {VALUE: schema}, "$defs": schema.pop("$defs", {})}
            required = [] if _is_nullable(schema) else [VALUE]
            return cls(_flat(wrapped, name), required, lambda content: validate(to_json(content.get(VALUE))))
        properties = _flat(schema, name)
        must: list[str] = schema.get("required", [])
        blank = {name: None for name in must if _is_nullable(schema["properties"][name])}
        required = [name for name in must if name not in blank]
        # As JSON, so that a strict model still takes a date from its text.
        return cls(properties, required, lambda content: validate(to_json({**blank, **content})))

    @classmethod
    def of_one(cls, field: Params) -> Form:
        """A form with one required field; its answer is that field's."""
        return cls({VALUE: field}, [VALUE], lambda content: content.get(VALUE))

    def parse(self, content: Params) -> Any:
        """The author's value from what a person filled in. Raises ValueError when it does not fit."""
        return self._parse({k: v for k, v in content.items() if k in self.properties and v is not None})

    def schema(self, dialect: Dialect) -> Params:
        """The form as a version of the protocol has it."""
        properties = {name: _gated(name, field, dialect) for name, field in self.properties.items()}
        schema: Params = {"type": "object", "properties": properties}
        if self.required:
            schema["required"] = self.required
        return schema


def _of_schema(schema: Params) -> Form:
    from defserve.binding.arguments.explicit import ExplicitArguments

    properties = _flat(schema, "the schema")
    checked = ExplicitArguments(schema, subject="the schema of a question")

    def parse(content: Params) -> Params:
        try:
            return checked.validate(content)
        except BadArguments as error:
            raise ValueError(error.message) from None

    return Form(properties, list(schema.get("required", ())), parse)


def _flat(schema: Params, owner: str) -> Params:
    definitions = schema.get("$defs", {})
    return {name: _field(name, field, definitions, owner) for name, field in schema.get("properties", {}).items()}


def _field(name: str, field: Params, definitions: Params, owner: str) -> Params:
    field = _choices(_resolved(field, definitions))
    kind = field.get("type")
    if kind == "array":
        items = _choices(_resolved(field.get("items", {}), definitions))
        field["items"] = {key: value for key, value in items.items() if key in _ITEMS}
        askable = _is_choice(field["items"]) and items.get("type", "string") == "string"
    else:
        askable = kind in _PRIMITIVES and not (_is_choice(field) and kind != "string")
    if not askable:
        raise UsageError(
            f"{owner}.{name} cannot be asked of a person: a form holds text, numbers, yes or no, and choices of text",
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
        target: Params = definitions[field["$ref"].rpartition("/")[2]]
        # The title is the type's, and would take the place of the field's name on the form.
        target = {key: value for key, value in target.items() if key != "title"}
        return _resolved({**target, **{key: value for key, value in field.items() if key != "$ref"}}, definitions)
    real = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
    if len(real) == 1:
        rest = {key: value for key, value in field.items() if key != "anyOf"}
        return _resolved({**real[0], **rest}, definitions)
    return dict(field)


def _choices(field: Params) -> Params:
    """Read a constant as a choice of one, and set the type of a choice of texts."""
    if "const" in field:
        field = {**field, "enum": [field["const"]]}
    if "type" not in field and all(isinstance(choice, str) for choice in field.get("enum", [None])):
        field = {**field, "type": "string"}
    return field


def _is_choice(field: Params) -> bool:
    return "enum" in field or "anyOf" in field or "oneOf" in field


def _is_nullable(field: Params) -> bool:
    return any(option.get("type") == "null" for option in field.get("anyOf", ()))


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
