"""The request of a call: which argument goes where, and the address, headers and body made of checked arguments."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, unquote

from defserve.base.hidden_characters import is_printable_line
from defserve.base.peer_bounds import truncate_text
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object, read_required_names
from defserve.errors import BadArguments, Problem, ToolError
from defserve.openapi.operations import (
    PATH_VARIABLE_PATTERN,
    Operation,
    OperationParameter,
    RequestBody,
    make_argument_name,
)
from defserve.openapi.schema_dialect import MAX_FIELD_DESCRIPTION_LENGTH, clean_and_cut_text
from defserve.openapi.schemas import SchemaConverter

_PATH_SAFE = "/:@!$&'()*+,;=~-._%"
_MARKS = re.compile(r"[ .\[]")


@dataclass(slots=True)
class ApiRequest:
    """One request, before the credentials are added. Its repr has no values."""

    method: str
    url: str
    query: list[str] = field(default_factory=list[str], repr=False)
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    cookies: list[str] = field(default_factory=list[str], repr=False)
    content: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`content`, `data` and `files`, as httpx takes them."""

    @property
    def address(self) -> str:
        mark = "&" if "?" in self.url else "?"
        return f"{self.url}{mark}{'&'.join(self.query)}" if self.query else self.url

    @property
    def all_headers(self) -> dict[str, str]:
        """Each header once: of names that differ in case only, the later one counts."""
        made = {name.lower(): value for name, value in self.headers.items()}
        if self.cookies:
            made["cookie"] = "; ".join((*filter(None, [made.get("cookie")]), *self.cookies))
        if "files" in self.content:
            made.pop("content-type", None)  # httpx writes it: it names what stands between the parts
        return made


def build_request(
    operation: Operation, plan: RequestPlan, base: str, arguments: dict[str, Any], slashes: Collection[str]
) -> ApiRequest:
    """The request. Raises BadArguments for a value that could leave its place."""
    request = ApiRequest(operation.method.upper(), "", headers={"accept": "application/json, */*;q=0.5"})
    in_paths: dict[str, str] = {}
    for argument in plan.parameters:
        parameter, value = argument.parameter, arguments.get(argument.name)
        if value is None and not parameter.required:
            continue
        if parameter.place == "path":
            in_paths[parameter.name] = in_path(parameter, value, argument.name, slashes=parameter.name in slashes)
        elif parameter.place == "query":
            _check_keys(plan, argument, value)
            request.query += query_pairs(parameter, value)
        elif parameter.place == "header":
            request.headers[parameter.name] = in_header(parameter, value, argument.name)
        else:
            _check_keys(plan, argument, value)
            request.cookies += cookie_pairs(parameter, value)
    request.url = base + _path(operation.path, in_paths)
    if plan.body is not None:
        _add_body(request, plan.body, arguments)
    return request


def _check_keys(plan: RequestPlan, argument: ParameterArgument, value: Any) -> None:
    """The keys of an exploded object stand for names of parameters. Raises BadArguments for those of others."""
    parameter = argument.parameter
    is_spread = parameter.explode and parameter.style != "deepObject" and parameter.media is None
    if not is_spread or not is_object(value):
        return
    for key in value:
        # Many servers read `a[b]` and `a.b` as a part of `a`. Some read `a b` and `a.b` as `a_b`, and stop at NUL.
        whole = key.partition("\0")[0].strip().lower()
        names = {whole, *(whole.partition(mark)[0] for mark in "[."), _MARKS.sub("_", whole)} - {parameter.name.lower()}
        if any((parameter.place, name) in plan.named for name in names):
            raise BadArguments(
                (Problem(argument.name, f"must not have the key {truncate_text(key)!r}: another parameter has it"),)
            )


def _path(template: str, values: dict[str, str]) -> str:
    """The path, each variable in its place. Raises ToolError if the whole would name another address."""
    template = template.partition("#")[0]
    # Some documents write a query here, and variables in it. No value holds a `?` that is not encoded.
    filled = "".join(
        values.get(piece, "") if index % 2 else quote(piece, safe=f"{_PATH_SAFE}?")
        for index, piece in enumerate(PATH_VARIABLE_PATTERN.split(template))
    )
    path, mark, query = filled.partition("?")
    # Two values may stand in one part: what each is alone says nothing about both.
    if any(part in (".", "..") for part in path.replace("%2E", ".").replace("%2e", ".").split("/")):
        raise ToolError("the arguments make an address that names another one")
    return f"{path}{mark}{query}"


def _add_body(request: ApiRequest, plan: BodyArguments, arguments: dict[str, Any]) -> None:
    if plan.whole is not None:
        if plan.whole not in arguments:
            return
        value: Any = arguments[plan.whole]
    else:
        value = {field: arguments[name] for name, field in plan.fields.items() if name in arguments}
        if not value and not plan.required:
            return
    _WRITERS[plan.kind](request, plan, value)


def _json(request: ApiRequest, plan: BodyArguments, value: Any) -> None:
    request.headers["content-type"] = plan.media if "*" not in plan.media else "application/json"
    request.content["content"] = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _form(request: ApiRequest, plan: BodyArguments, value: Any) -> None:
    fields = value.items() if is_object(value) else ()
    pairs = [
        f"{encode_value(key, '[]')}={encode_value(text)}"
        for name, item in fields
        for key, text in _form_values(name, item)
    ]
    request.headers["content-type"] = "application/x-www-form-urlencoded"
    request.content["content"] = "&".join(pairs).encode()


def _form_values(name: str, value: Any) -> list[tuple[str, str]]:
    """Fields of a form as most APIs read them: `items[0]`, `address[city]`; a plain list repeats its name."""
    if is_array(value):
        if all(not isinstance(item, dict | list) for item in value):
            return [(name, text_of(item)) for item in value]
        return [pair for index, item in enumerate(value) for pair in _form_values(f"{name}[{index}]", item)]
    if is_object(value):
        return [pair for key, item in value.items() for pair in _form_values(f"{name}[{key}]", item)]
    return [] if value is None else [(name, text_of(value))]


def _multipart(request: ApiRequest, plan: BodyArguments, value: Any) -> None:
    files: list[tuple[str, tuple[str | None, bytes, str] | tuple[str | None, bytes]]] = []
    for name, item in value.items() if is_object(value) else ():
        if name in plan.files:
            for each in item if is_array(item) else [item]:
                data, filename, media = _file(each, name)
                files.append((name, (filename or name, data, media)))
        elif isinstance(item, dict) or (is_array(item) and any(isinstance(each, dict | list) for each in item)):
            files.append((name, (None, json.dumps(item).encode(), "application/json")))
        else:
            texts = [text_of(each) for each in (item if is_array(item) else [item]) if each is not None]
            files += [(name, (None, text.encode("utf-8", "replace"))) for text in texts]
    request.content["files"] = files or [("", (None, b""))]


def _text(request: ApiRequest, plan: BodyArguments, value: Any) -> None:
    request.headers["content-type"] = plan.media if "charset" in plan.media else f"{plan.media}; charset=utf-8"
    request.content["content"] = text_of(value).encode("utf-8", "replace")


def _bytes(request: ApiRequest, plan: BodyArguments, value: Any) -> None:
    data, _, media = _file(value, plan.whole or "body")
    request.headers["content-type"] = media if "*" in plan.media else plan.media
    request.content["content"] = data


def _file(value: Any, argument: str) -> tuple[bytes, str | None, str]:
    """Content, name and media type of a file. Raises BadArguments."""

    def wrong(reason: str) -> BadArguments:
        return BadArguments((Problem(argument, reason),))

    if isinstance(value, str):
        value = {"text": value}
    if not is_object(value) or ("text" in value) == ("base64" in value):
        raise wrong("expected a file: an object with text, or with base64")
    name, media = value.get("filename"), value.get("content_type")
    for given in (name, media):
        if isinstance(given, str) and not (is_printable_line(given) and len(given) <= 200):
            raise wrong("filename and content_type must be short and printable")
    if isinstance(media, str) and not media.isascii():
        raise wrong("content_type must be ASCII: it is sent in a header")
    if "text" in value:
        return str(value["text"]).encode("utf-8", "replace"), name, media or "text/plain"
    try:
        return b64decode(str(value["base64"]), validate=True), name, media or "application/octet-stream"
    except (NotBase64, ValueError):
        raise wrong("base64 cannot be decoded") from None


_WRITERS = {"json": _json, "form": _form, "multipart": _multipart, "text": _text, "bytes": _bytes}


# -- How parameters are written (OpenAPI 3.1 §4.8.12.3): matrix, label, form, simple, delimited and deepObject.


_RESERVED: Final = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is. Without `#`, `&`, `=` and `+`, which would begin something else."""
_DELIMITERS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def text_of(value: Any) -> str:
    """A JSON value as it stands in a URL."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))  # an integer may come as 3.0
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def content_of(media: str, value: Any, *, ascii_only: bool = False) -> str:
    """The value of a parameter that has a media type of its own."""
    is_json = media.partition(";")[0].strip().lower().endswith(("/json", "+json", "*"))
    return json.dumps(value, ensure_ascii=ascii_only) if is_json else text_of(value)


def encode_value(value: Any, safe: str = "") -> str:
    # A lone surrogate has no form in UTF-8.
    return quote(text_of(value).encode("utf-8", "replace"), safe=safe)


def query_pairs(parameter: OperationParameter, value: Any) -> Iterator[str]:
    """The `name=value` texts of a query parameter, encoded."""
    safe = _RESERVED if parameter.allow_reserved else ""
    name = encode_value(parameter.name, "[]")
    if parameter.media is not None:
        yield f"{name}={encode_value(content_of(parameter.media, value), safe)}"
    elif is_array(value):
        items = [encode_value(item, safe) for item in value]
        if parameter.explode or parameter.style == "deepObject":
            yield from (f"{name}={item}" for item in items)
        elif items:
            yield f"{name}={_DELIMITERS.get(parameter.style, ',').join(items)}"
    elif is_object(value):
        if parameter.style == "deepObject":
            yield from _deep(name, value, safe)
        elif parameter.explode:
            yield from (f"{encode_value(key, '[]')}={encode_value(item, safe)}" for key, item in value.items())
        elif value:
            flat = [encode_value(part, safe) for pair in value.items() for part in pair]
            yield f"{name}={_DELIMITERS.get(parameter.style, ',').join(flat)}"
    else:
        yield f"{name}={encode_value(value, safe)}"


def _deep(name: str, value: Any, safe: str) -> Iterator[str]:
    """`filter[author][name]=x`. Deeper than one level is not in the standard, and common."""
    for key, item in value.items():
        inner = f"{name}[{encode_value(key)}]"
        if is_object(item):
            yield from _deep(inner, item, safe)
        elif is_array(item):
            yield from (f"{inner}[]={encode_value(each, safe)}" for each in item)
        else:
            yield f"{inner}={encode_value(item, safe)}"


def in_path(parameter: OperationParameter, value: Any, argument: str, *, slashes: bool) -> str:
    """The text of a path parameter, which cannot be more than its part of the path. Raises BadArguments."""
    values: list[Any] = [value]
    if is_array(value):
        values = list(value)
    elif is_object(value):
        values = [part for pair in value.items() for part in pair]
    texts = [text_of(item) for item in values]
    for text in texts:
        if problem := _leaves_segment(text, slashes):
            raise BadArguments((Problem(argument, problem),))
    if not "".join(texts):
        raise BadArguments((Problem(argument, "must not be empty: it is a part of the address"),))
    return _format_path_value(parameter, value)


def _leaves_segment(text: str, slashes: bool) -> str | None:
    # Many servers decode a path before they look at it, some of them twice.
    meant = text
    for _ in range(3):
        meant = unquote(meant)
    parts = meant.replace("\\", "/").split("/")
    if any(part.strip() in (".", "..") for part in parts) or any(
        part.partition(";")[0] in (".", "..") for part in parts
    ):
        return "must not be . or .., which name other addresses"
    if len(parts) > 1 and not slashes:
        return "must not hold a slash, which begins another part of the address"
    if slashes and ("" in parts[:-1] or "\\" in meant):
        return "must be a relative path with single slashes"
    if any(ord(character) < 32 or character == "\x7f" for character in meant):
        return "must not hold control characters"
    return None


def _format_path_value(parameter: OperationParameter, value: Any) -> str:
    if parameter.media is not None:
        return encode_value(content_of(parameter.media, value))
    name, explode, style = encode_value(parameter.name), parameter.explode, parameter.style
    if style == "matrix":
        if is_array(value):
            items = [encode_value(item) for item in value]
            return "".join(f";{name}={item}" for item in items) if explode else f";{name}={','.join(items)}"
        if is_object(value) and explode:
            return "".join(f";{encode_value(key)}={encode_value(item)}" for key, item in value.items())
        return f";{name}={simple(value, explode)}"
    if style == "label":
        return "." + simple(value, explode).replace(",", "." if explode else ",")
    return simple(value, explode)


def simple(value: Any, explode: bool) -> str:
    """Values separated by commas: `a,b`, `k,v` or, exploded, `k=v`."""
    if is_array(value):
        return ",".join(encode_value(item) for item in value)
    if is_object(value):
        between = "=" if explode else ","
        return ",".join(f"{encode_value(key)}{between}{encode_value(item)}" for key, item in value.items())
    return encode_value(value)


def in_header(parameter: OperationParameter, value: Any, argument: str) -> str:
    """The value of a header. Raises BadArguments for one that would begin another header."""
    if parameter.media is not None:
        text = content_of(parameter.media, value, ascii_only=True)
    elif is_array(value):
        text = ",".join(map(text_of, value))
    elif is_object(value):
        between = "=" if parameter.explode else ","
        text = ",".join(f"{key}{between}{text_of(item)}" for key, item in value.items())
    else:
        text = text_of(value)
    if not (text.isascii() and text.isprintable()):
        raise BadArguments((Problem(argument, "must be printable ASCII: it is sent as a header"),))
    return text.strip()


def cookie_pairs(parameter: OperationParameter, value: Any) -> Iterator[str]:
    """The `name=value` texts of a cookie parameter."""
    if parameter.media is not None:
        yield f"{encode_value(parameter.name)}={encode_value(content_of(parameter.media, value))}"
    elif is_object(value) and parameter.explode:
        yield from (f"{encode_value(key)}={encode_value(item)}" for key, item in value.items())
    elif is_array(value) and parameter.explode:
        yield from (f"{encode_value(parameter.name)}={encode_value(item)}" for item in value)
    else:
        yield f"{encode_value(parameter.name)}={simple(value, False)}"


# -- Which argument of a tool goes where in the request: made of an operation when its schema is first needed.


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
    for key in properties:
        name = make_argument_name(key, "body", set(names))
        if name in taken or (name != key and name in properties):
            return None
        names[name] = key
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
    forms = (form for word in ("anyOf", "oneOf") if is_array(found := schema.get(word)) for form in found)
    if any(map(_is_file, forms)):
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
    said = clean_and_cut_text(description, MAX_FIELD_DESCRIPTION_LENGTH)
    return {**schema, "description": said} if said else schema
