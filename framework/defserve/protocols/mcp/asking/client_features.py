"""What MCP clients are asked, as Python objects: forms from Python types (elicitation), and sampling with its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from defserve.binding.content import Audio, ContentPart, Image, Text
from defserve.core.json_values import as_list, is_mapping
from defserve.core.messages import Params
from defserve.errors import BadArguments, NoBackChannel, UsageError
from defserve.protocols.mcp.items import encode_content_block
from defserve.protocols.mcp.lifecycle import Dialect

SINGLE_FIELD_NAME = "value"

_PRIMITIVES = {"string", "number", "integer", "boolean"}
_KEPT = {
    "type", "title", "description", "default", "enum", "enumNames", "oneOf", "minLength", "maxLength", "format",
    "minimum", "maximum", "minItems", "maxItems", "items",
}  # fmt: skip
_ITEMS = {"type", "enum", "anyOf"}
_FORMATS = {"email", "uri", "date", "date-time"}


class ElicitationForm:
    """A question's schema and how its answer becomes the author's type.

    `parse` raises ValueError. It sees no field the form does not have, and none that was left blank.
    """

    __slots__ = ("properties", "required", "_parse")

    def __init__(self, properties: Params, required: list[str], parse: Callable[[Params], Any]) -> None:
        self.properties, self.required, self._parse = properties, required, parse

    @classmethod
    def from_type(cls, kind: Any) -> ElicitationForm:
        """A form for a model, dataclass or TypedDict of primitives, for one primitive type, or for a JSON Schema."""
        if is_mapping(kind):
            return _of_schema({"type": "object", **kind})
        from pydantic_core import to_json

        from defserve.binding import models
        from defserve.binding.arguments import UnusablePattern, check_core_schema_patterns
        from defserve.binding.core_schemas import make_bounded_argument_validator

        adapter = models.make_type_adapter(kind)
        try:
            check_core_schema_patterns(adapter.core_schema)
        except UnusablePattern as error:
            raise UsageError(f"question: {error.problem}", fix=error.fix) from None
        # The adapter's own would match a text of any length.
        validate = make_bounded_argument_validator(adapter).validate_json
        schema = adapter.json_schema(schema_generator=models.TitlelessSchemaGenerator)
        name = getattr(kind, "__name__", str(kind))
        if "properties" not in schema:
            wrapped = {"properties": {SINGLE_FIELD_NAME: schema}, "$defs": schema.pop("$defs", {})}
            required = [] if _is_nullable(schema) else [SINGLE_FIELD_NAME]
            return cls(
                _flat(wrapped, name), required, lambda content: validate(to_json(content.get(SINGLE_FIELD_NAME)))
            )
        properties = _flat(schema, name)
        must: list[str] = schema.get("required", [])
        blank = {name: None for name in must if _is_nullable(schema["properties"][name])}
        required = [name for name in must if name not in blank]
        # As JSON, so that a strict model still takes a date from its text.
        return cls(properties, required, lambda content: validate(to_json({**blank, **content})))

    @classmethod
    def from_single_field(cls, field: Params) -> ElicitationForm:
        """A form with one required field; its answer is that field's."""
        return cls({SINGLE_FIELD_NAME: field}, [SINGLE_FIELD_NAME], lambda content: content.get(SINGLE_FIELD_NAME))

    def parse_answer(self, content: Params) -> Any:
        """The author's value from what a person filled in. Raises ValueError when it does not fit."""
        return self._parse({k: v for k, v in content.items() if k in self.properties and v is not None})

    def build_schema(self, dialect: Dialect) -> Params:
        """The form as a version of the protocol has it."""
        properties = {name: _adapt_to_dialect(name, field, dialect) for name, field in self.properties.items()}
        schema: Params = {"type": "object", "properties": properties}
        if self.required:
            schema["required"] = self.required
        return schema


def _of_schema(schema: Params) -> ElicitationForm:
    from defserve.binding.explicit_schema import ExplicitArgumentsSchema

    properties = _flat(schema, "the schema")
    checked = ExplicitArgumentsSchema(schema, subject="the schema of a question")

    def parse(content: Params) -> Params:
        try:
            return checked.validate(content)
        except BadArguments as error:
            raise ValueError(error.message) from None

    return ElicitationForm(properties, list(schema.get("required", ())), parse)


def _flat(schema: Params, owner: str) -> Params:
    definitions = schema.get("$defs", {})
    return {name: _field(name, field, definitions, owner) for name, field in schema.get("properties", {}).items()}


def _field(name: str, field: Params, definitions: Params, owner: str) -> Params:
    field = _choices(_resolve_field(field, definitions))
    kind = field.get("type")
    if kind == "array":
        items = _choices(_resolve_field(field.get("items", {}), definitions))
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


def _resolve_field(field: Params, definitions: Params) -> Params:
    """`$ref` followed, and `T | None` read as an optional T."""
    if "$ref" in field:
        target: Params = definitions[field["$ref"].rpartition("/")[2]]
        # The title is the type's, and would take the place of the field's name on the form.
        target = {key: value for key, value in target.items() if key != "title"}
        return _resolve_field({**target, **{key: value for key, value in field.items() if key != "$ref"}}, definitions)
    real = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
    if len(real) == 1:
        rest = {key: value for key, value in field.items() if key != "anyOf"}
        return _resolve_field({**real[0], **rest}, definitions)
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


def _adapt_to_dialect(name: str, field: Params, dialect: Dialect) -> Params:
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


# -- MCP sampling (client features: sampling): the request as Python objects, and the reply.


class Message:
    """One message of a conversation: `Message("user", "hello")`, or `User("hello")`, `Assistant("hi")`."""

    __slots__ = ("role", "content")

    def __init__(self, role: str, content: str | ContentPart) -> None:
        if role not in ("user", "assistant"):
            raise UsageError(f"a message's role is 'user' or 'assistant', not {role!r}")
        self.role = role
        self.content: ContentPart = Text(content) if isinstance(content, str) else content

    def to_wire(self, dialect: Dialect) -> Params:
        """The message for the wire, as the client's version has it."""
        return {"role": self.role, "content": encode_content_block(self.content, dialect)}


def User(content: str | ContentPart) -> Message:
    """A message of the user's."""
    return Message("user", content)


def Assistant(content: str | ContentPart) -> Message:
    """A message of the model's."""
    return Message("assistant", content)


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What to ask of the client's model."""

    messages: Sequence[Message | str | Mapping[str, Any]]
    max_tokens: int = 1024
    system: str | None = None
    temperature: float | None = None
    stop: Sequence[str] = ()
    models: Sequence[str] = ()
    cost: float | None = None
    speed: float | None = None
    intelligence: float | None = None
    metadata: Mapping[str, Any] | None = None
    include_context: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | None = None


def make_sample_options(
    messages: str | Sequence[Message | str | Mapping[str, Any]] | SampleOptions,
    max_tokens: int,
    system: str | None,
    temperature: float | None,
) -> SampleOptions:
    """What an author gave to `ctx.sample`, as options."""
    if isinstance(messages, SampleOptions):
        return messages
    given = [messages] if isinstance(messages, str) else messages
    return SampleOptions(given, max_tokens=max_tokens, system=system, temperature=temperature)


def build_sampling_params(options: SampleOptions, dialect: Dialect, offered: Mapping[str, Any]) -> Params:
    """`CreateMessageRequest` params. `offered` is the client's sampling capability."""
    # Since 2025-11-25 context is only asked of a client that names it; the client is free to ignore it anyway.
    context = "sampling_tools" not in dialect.has or "context" in offered or options.include_context == "none"
    preferences = {
        "hints": [{"name": name} for name in options.models],
        "costPriority": options.cost,
        "speedPriority": options.speed,
        "intelligencePriority": options.intelligence,
    }
    optional = {
        "systemPrompt": options.system,
        "temperature": options.temperature,
        "stopSequences": list(options.stop) or None,
        "modelPreferences": {k: v for k, v in preferences.items() if v not in (None, [])} or None,
        "metadata": dict(options.metadata) if options.metadata else None,
        "includeContext": options.include_context if context else None,
        "tools": [dict(tool) for tool in options.tools] or None,
        "toolChoice": {"mode": options.tool_choice} if options.tool_choice else None,
    }
    messages = [_message(message, dialect) for message in options.messages]
    params: Params = {"messages": messages, "maxTokens": options.max_tokens}
    return params | {key: value for key, value in optional.items() if value is not None}


def _message(message: Message | str | Mapping[str, Any], dialect: Dialect) -> Params:
    if isinstance(message, str):
        return User(message).to_wire(dialect)
    if not isinstance(message, Message):
        return dict(message)
    if not isinstance(message.content, Text | Image | Audio):
        # SamplingMessage has fewer kinds of content than PromptMessage.
        raise UsageError(
            f"a {type(message.content).__name__} cannot be sampled from", fix="send its text, an Image or an Audio"
        )
    return message.to_wire(dialect)


class Sample:
    """What the client's model wrote: `text`, and the whole reply in `raw`."""

    __slots__ = ("raw",)

    def __init__(self, raw: Params) -> None:
        self.raw = raw

    @property
    def content(self) -> list[Params]:
        return as_list(self.raw["content"])

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.content if part.get("type") == "text")

    @property
    def model(self) -> str:
        return self.raw.get("model") or ""

    @property
    def stop_reason(self) -> str | None:
        return self.raw.get("stopReason")

    def __str__(self) -> str:
        return self.text
