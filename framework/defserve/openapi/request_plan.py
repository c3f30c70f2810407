"""Which argument of a tool goes where in the request: made of an operation when its schema is first needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl

from defserve.core.json_values import JsonSchema, as_list, is_object, read_required_names
from defserve.openapi.names import make_argument_name
from defserve.openapi.operations import Operation, OperationParameter, RequestBody
from defserve.openapi.schema_dialect import MAX_FIELD_DESCRIPTION_LENGTH, clean_text
from defserve.openapi.schemas import SchemaConverter

BodyKind: TypeAlias = Literal["json", "multipart", "form", "text", "bytes"]

NOT_ARGUMENTS: Final = frozenset(
    "accept accept-encoding authorization connection content-length content-type cookie expect forwarded host"
    " keep-alive proxy-authorization te trailer transfer-encoding upgrade via x-forwarded-for x-forwarded-host"
    " x-forwarded-proto x-http-method x-http-method-override x-method-override x-original-url x-rewrite-url".split()
)
"""Headers that say who calls, where the request goes and what it does: they are never an argument."""

FILE: Final[JsonSchema] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The content, if it is text."},
        "base64": {"type": "string", "description": "The content in base64, if it is not."},
        "filename": {"type": "string"},
        "content_type": {"type": "string"},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ParameterArgument:
    """An argument that is a parameter of the operation."""

    name: str
    parameter: OperationParameter


@dataclass(frozen=True, slots=True)
class BodyArguments:
    """The arguments that make the body. `fields`: argument → field; or, not flattened, the `whole` is one argument."""

    media: str
    kind: BodyKind
    required: bool
    fields: dict[str, str]
    whole: str | None
    files: frozenset[str]
    schema: JsonSchema


class RequestPlan:
    """The arguments of one operation, and their schema."""

    def __init__(self, operation: Operation, schemas: SchemaConverter, hidden: Collection[tuple[str, str]]) -> None:
        """`hidden` are parameters, by place and name in lower case, that the author fills in."""
        self.parameters: list[ParameterArgument] = []
        fixed = parse_qsl(operation.path.partition("?")[2], keep_blank_values=True)
        # By place and name in lower case: what no key of an object in another parameter may be called.
        self.named = frozenset(
            (
                *hidden,
                *((parameter.place, parameter.name.lower()) for parameter in operation.parameters),
                *(("query", name.lower()) for name, _ in fixed),
            )
        )
        self.body: BodyArguments | None = None
        taken: set[str] = set()
        properties: dict[str, JsonSchema] = {}
        required: list[str] = []
        for parameter in operation.parameters:
            lower = parameter.name.lower()
            if (parameter.place, lower) in hidden or (parameter.place == "header" and lower in NOT_ARGUMENTS):
                continue
            name = make_argument_name(parameter.name, parameter.place, taken)
            taken.add(name)
            self.parameters.append(ParameterArgument(name, parameter))
            properties[name] = _add_description(schemas.convert(parameter.schema, "request"), parameter.description)
            required += [name] if parameter.required else []
        if operation.body is not None:
            self.body = _body(operation.body, schemas, taken)
            own, needed = _of_body(self.body, operation.body)
            properties |= own
            required += needed
        root: JsonSchema = {"type": "object", "properties": properties}
        if required:
            root["required"] = required
        self.properties = properties
        self.schema = schemas.convert_with_definitions({**root, "additionalProperties": False}, "request")


def _body(body: RequestBody, schemas: SchemaConverter, taken: set[str]) -> BodyArguments:
    media, kind = _choose_media_type(body.content)
    described = body.content[media]
    root = schemas.convert_root(described.get("schema"), "request") if kind not in ("text", "bytes") else {}
    files = _files(described.get("schema"), schemas) if kind == "multipart" else frozenset[str]()
    fields = _flat_fields(root, taken)
    whole = make_argument_name("body", "request", taken) if fields is None else None
    return BodyArguments(media, kind, body.required, fields or {}, whole, files, root)


def _flat_fields(root: JsonSchema, taken: set[str]) -> dict[str, str] | None:
    """Argument → field, if the body is one object of named fields that no parameter is called like. Else None."""
    properties = root.get("properties")
    if not is_object(properties) or not properties or as_list(root.get("type")) != ["object"]:
        return None
    more = ("anyOf", "oneOf", "allOf", "not", "patternProperties", "minProperties")
    if any(word in root for word in more) or root.get("additionalProperties") not in (None, False):
        return None
    names: dict[str, str] = {}
    for field in properties:
        name = make_argument_name(field, "body", set(names))
        if name in taken or (name != field and name in properties):
            return None
        names[name] = field
    return names


def _of_body(plan: BodyArguments, body: RequestBody) -> tuple[dict[str, JsonSchema], list[str]]:
    """The properties that the body adds, and which of them are required."""
    if plan.whole is not None:
        schema = _whole_schema(plan)
        return {plan.whole: _add_description(schema, body.description)}, [plan.whole] if plan.required else []
    properties: dict[str, JsonSchema] = plan.schema["properties"]
    found = {name: _to_file_schema(field, properties[field], plan.files) for name, field in plan.fields.items()}
    needed = read_required_names(plan.schema)
    return found, [name for name, field in plan.fields.items() if plan.required and field in needed]


def _whole_schema(plan: BodyArguments) -> JsonSchema:
    if plan.kind == "text":
        return {"type": "string"}
    if plan.kind == "bytes":
        return FILE
    if plan.kind == "json":
        return plan.schema
    schema = plan.schema if plan.schema.get("type") == "object" else {"type": "object"}
    if plan.files and is_object(properties := schema.get("properties")):
        schema = {
            **schema,
            "properties": {key: _to_file_schema(key, each, plan.files) for key, each in properties.items()},
        }
    return schema


def _to_file_schema(field: str, schema: JsonSchema, files: Collection[str]) -> JsonSchema:
    if field not in files:
        return schema
    said = {"description": schema["description"]} if "description" in schema else {}
    return {"type": "array", "items": FILE, **said} if schema.get("type") == "array" else {**FILE, **said}


def _files(schema: Any, schemas: SchemaConverter) -> frozenset[str]:
    """The fields of a form that are files: binary texts, and lists of them."""
    fields = schemas.raw.properties(schema)
    return frozenset(name for name, field in fields.items() if _is_file(field) or _is_file(_items(field)))


def _items(schema: Any) -> Any:
    return schema.get("items") if is_object(schema) and schema.get("type") == "array" else None


def _is_file(schema: Any) -> bool:
    if not is_object(schema):
        return False
    if any(map(_is_file, (*schema.get("anyOf", ()), *schema.get("oneOf", ())))):
        return True
    media = schema.get("contentMediaType")
    is_binary = schema.get("format") == "binary" or (
        isinstance(media, str) and not media.startswith("application/json")
    )
    return is_binary and "contentEncoding" not in schema and schema.get("type", "string") in ("string", ["string"])


_KINDS: Final[tuple[tuple[BodyKind, str], ...]] = (
    ("json", "application/json"),
    ("multipart", "multipart/form-data"),
    ("form", "application/x-www-form-urlencoded"),
)


def _choose_media_type(content: Collection[str]) -> tuple[str, BodyKind]:
    """The media type that is sent, of those that the operation takes."""
    plain = {media.partition(";")[0].strip().lower(): media for media in content}
    for kind, wanted in _KINDS:
        if wanted in plain:
            return plain[wanted], kind
        if kind == "json" and (alike := next((media for media in plain if media.endswith("+json")), None)):
            return plain[alike], "json"
    text = next((media for media in plain if media.startswith("text/") or media.endswith(("/xml", "+xml"))), None)
    if text is not None:
        return plain[text], "text"
    first = next(iter(content))
    return (first, "json") if first.strip() in ("*/*", "application/*") else (first, "bytes")


def _add_description(schema: JsonSchema, description: str) -> JsonSchema:
    said = clean_text(description, MAX_FIELD_DESCRIPTION_LENGTH)
    return {**schema, "description": said} if said else schema
