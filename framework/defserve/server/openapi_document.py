"""The OpenAPI 3.0 document of listed tools, with examples that can be called as they are.

It needs only JSON, so it works for any server that answers `tools/list`. What OpenAPI cannot say is left out; the
server still checks it. Every example is made from the constraints of its schema, and a validator has checked it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote

from defserve.base.peer_bounds import truncate_text
from defserve.base.redaction import get_logger
from defserve.binding.patterns import PatternProblem, compile_pattern, is_pattern_found
from defserve.core.json_values import JsonSchema, as_list, is_array, is_mapping, is_object
from defserve.protocols.mcp.tools import RETURNS_META_KEY, TAGS_META_KEY

log = get_logger()

OPENAPI_VERSION: Final = "3.0.3"

# Of a schema that is translated, and of one that examples are made for. A mounted server may have written it.
MAX_SCHEMA_VALUES: Final = 20_000
MAX_EXAMPLE_SCHEMA_VALUES: Final = 2_000
# Characters of a tool's name and of a reason that a warning repeats, and how many tools have a warning of their own.
MAX_OPENAPI_NAME_LENGTH: Final = 128
MAX_REASON: Final = 300
MAX_LOGGED_TOOLS: Final = 10

ERROR_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string", "description": "A word for programs, such as invalid_arguments."},
                "message": {"type": "string", "description": "What happened, for people and models."},
                "trace_id": {"type": "string"},
                "problems": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"field": {"type": "string"}, "reason": {"type": "string"}},
                    },
                },
            },
        }
    },
}

# Component → what the response means.
FAILURES: Final = {
    "ValidationError": "The arguments do not fit the tool.",
    "NotFound": "There is no such tool, or not for this caller.",
    "Failure": "The call was refused, or the tool failed.",
}


def build_openapi_document(
    info: Mapping[str, Any], tools: Iterable[Mapping[str, Any]], *, base: str = "", authorized: bool = False
) -> dict[str, Any]:
    """The document for a server that describes itself by `info` and lists `tools`.

    `base` is the path in front of `/tools`; `authorized`: callers need a bearer token. A tool whose schemas cannot be
    translated, or are too wide, is left out, and a warning says so.
    """
    schemas: dict[str, Any] = {
        "Error": ERROR_SCHEMA,
        "Anything": {},
        "ToolInput": {"type": "object", "description": "The tool's arguments by name."},
        "ToolOutput": {"type": "object", "required": ["result"], "properties": {"result": {}}},
    }
    paths, left_out = dict[str, Any](), 0
    for tool in tools:
        components: dict[str, Any] = {}
        try:
            operation = _operation(tool, components, authorized)
        except Exception as error:  # whatever a schema that is none makes of it: a mounted server may have written it
            left_out += 1
            tell = log.warning if left_out <= MAX_LOGGED_TOOLS else log.debug
            tell(
                "the OpenAPI document leaves out the tool %r: its schema cannot be translated (%s); callers that know "
                "its name can still call it. Correct the schema where the tool is declared",
                truncate_text(str(tool.get("name")), MAX_OPENAPI_NAME_LENGTH),
                truncate_text(f"{type(error).__name__}: {error}", MAX_REASON),
            )
            continue
        schemas |= components
        paths[f"/tools/{tool['name']}"] = {"post": operation}
    if left_out > MAX_LOGGED_TOOLS:
        log.warning("the OpenAPI document leaves out %d more tools like these", left_out - MAX_LOGGED_TOOLS)
    paths["/tools/{tool_name}"] = {"post": _any_tool(paths, authorized)}
    document: dict[str, Any] = {
        "openapi": OPENAPI_VERSION,
        "info": _info(info),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                name: {"description": text, "content": {"application/json": {"schema": _reference("Error")}}}
                for name, text in FAILURES.items()
            },
        },
    }
    if base:
        document["servers"] = [{"url": base}]
    if authorized:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document


def count_values(value: Any, most: int) -> int:
    """How many values a JSON value consists of, itself included. It stops counting above `most`."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        one = waiting.pop()
        count += 1
        inner: Collection[Any] = one.values() if is_mapping(one) else one if is_array(one) else ()
        if count + len(waiting) + len(inner) > most:
            return most + 1
        waiting += inner
    return count


def _info(info: Mapping[str, Any]) -> dict[str, Any]:
    about = info.get("description")
    shown = {"title": info.get("title") or info.get("name") or "tools", "version": str(info.get("version") or "0")}
    return {**shown, "description": about} if about else shown


def _operation(tool: Mapping[str, Any], schemas: dict[str, Any], authorized: bool) -> dict[str, Any]:
    for member in ("inputSchema", "outputSchema"):
        if count_values(tool.get(member), MAX_SCHEMA_VALUES) > MAX_SCHEMA_VALUES:
            raise ValueError(f"its {member} has more than {MAX_SCHEMA_VALUES} values")
    name, wanted = tool["name"], get_input_schema(tool)
    asked, given = f"{name}.input", f"{name}.output"
    _add(schemas, asked, wanted)
    _add(schemas, given, output_schema(tool), "/properties/result")
    body: dict[str, Any] = {"schema": _reference(asked)}
    if made := make_examples(wanted):
        body["examples"] = {f"example{number}": {"value": value} for number, value in enumerate(made, 1)}
    shown = (described := tool.get("description") or "").partition("\n")[0]
    if len(shown) > 120:
        shown = shown[:60] + (shown[60:119].rpartition(" ")[0] or shown[60:119]) + "…"
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": tool.get("title") or shown or name,
        "requestBody": {"required": bool(wanted.get("required")), "content": {"application/json": body}},
        "responses": _responses(given, authorized),
    }
    tags = get_tool_tags(tool)
    return operation | ({"description": described} if described else {}) | ({"tags": tags} if tags else {})


def get_input_schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a listed tool's arguments."""
    found: Any = tool.get("inputSchema")
    return found if is_mapping(found) else {}


def get_tool_tags(tool: Mapping[str, Any]) -> list[str]:
    """The tags of a listed tool."""
    meta: Any = tool.get("_meta")
    tags: Any = meta.get(TAGS_META_KEY) if is_mapping(meta) else None
    return [str(tag) for tag in tags] if is_array(tags) else []


def output_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What `POST /tools/{name}` answers: the tool's value, under `result`."""
    meta: Any = tool.get("_meta")
    scalar: Any = meta.get(RETURNS_META_KEY) if is_mapping(meta) else None
    result: dict[str, Any] = dict(tool.get("outputSchema") or scalar or {})
    definitions = result.pop("$defs", None)
    whole: dict[str, Any] = {"type": "object", "required": ["result"], "properties": {"result": result}}
    return {**whole, "$defs": definitions} if definitions else whole


def _any_tool(others: Mapping[str, Any], authorized: bool) -> dict[str, Any]:
    name = "call_any_tool"
    while f"/tools/{name}" in others:
        name += "_"
    return {
        "operationId": name,
        "summary": "Call a tool by its name",
        "parameters": [{"name": "tool_name", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"content": {"application/json": {"schema": _reference("ToolInput")}}},
        "responses": _responses("ToolOutput", authorized),
    }


def _responses(given: str, authorized: bool) -> dict[str, Any]:
    content, failed = ({"application/json": {"schema": _reference(name)}} for name in (given, "Error"))
    responses: dict[str, Any] = {
        "200": {"description": "What the tool gave back.", "content": content},
        "400": {"$ref": "#/components/responses/ValidationError"},
        "404": {"$ref": "#/components/responses/NotFound"},
        "default": {"$ref": "#/components/responses/Failure"},
    }
    if authorized:
        responses["401"] = {"description": "A bearer token is needed.", "content": failed}
    return responses


def _add(schemas: dict[str, Any], name: str, schema: Mapping[str, Any], root: str = "") -> None:
    """Add a schema and its definitions to the components, and make its references point there, `#` to its `root`."""

    def component(definition: str) -> str:
        return f"{name}-{re.sub(r'[^A-Za-z0-9._-]', '_', definition)}"

    definitions: Mapping[str, Any] = schema.get("$defs") or {}

    def refer(reference: str) -> str:
        known = unquote(reference.removeprefix("#/$defs/")).replace("~1", "/").replace("~0", "~")
        if reference == "#":
            return f"#/components/schemas/{name}{root}"
        # The target of any other reference is not known.
        return f"#/components/schemas/{component(known) if known in definitions else 'Anything'}"

    schemas[name] = openapi_schema(schema, refer)
    for definition, its_schema in definitions.items():
        schemas[component(definition)] = openapi_schema(its_schema, refer)


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# -- JSON Schema 2020-12 translated to OpenAPI 3.0. What OpenAPI cannot say is left out; the server still checks it.


Refer = Callable[[str], str]

# Keywords that mean the same in both.
SAME: Final = frozenset(
    """title description default enum format deprecated readOnly writeOnly multipleOf minimum maximum minLength
    maxLength pattern minItems maxItems uniqueItems minProperties maxProperties required""".split()
)


NULL: Final = {"enum": [None], "nullable": True}


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
    if "patternProperties" in schema:
        said.pop("additionalProperties", None)  # OpenAPI has no patterns, and a name may fit one
    if said.get("type") == "array" and "items" not in said:
        said["items"] = {}
    return said


def _type(kinds: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
    named = [kind for kind in as_list(kinds) if kind != "null"]
    nullable = {"nullable": True} if len(named) < len(as_list(kinds)) else {}
    if not named:
        return dict(NULL)
    if len(named) == 1:
        return {"type": named[0], **nullable}
    # OpenAPI has no list of types. Keywords of one type do not affect the branches of the others.
    branches: list[dict[str, Any]] = [{"type": kind, **({"items": {}} if kind == "array" else {})} for kind in named]
    return {"anyOf": [*branches, NULL] if nullable else branches}


def _branches(keyword: str) -> Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]:
    def translate(branches: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
        some = [branch for branch in branches if not (is_mapping(branch) and branch.get("type") == "null")]
        made: list[dict[str, Any]] = [openapi_schema(branch, refer) for branch in some]
        if len(some) == len(branches):
            return {keyword: made}
        if len(made) == 1 and made[0].keys() & {"type", "enum", "anyOf", "oneOf", "allOf", "not"} == {"type"}:
            return {**made[0], "nullable": True}
        # Nullable needs a type beside it, which a reference cannot have, and takes nothing back: an enum has no null.
        return {keyword: [*made, NULL]}

    return translate


def _edge(bound: str) -> Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]:
    exclusive = f"exclusive{bound.capitalize()}"

    def translate(value: Any, said: Mapping[str, Any], refer: Refer) -> dict[str, Any]:
        inclusive = said.get(bound)
        tighter = inclusive is None or (value >= inclusive if bound == "minimum" else value <= inclusive)
        return {bound: value, exclusive: True} if tighter else {}

    return translate


# -- A short text that a regular expression matches.


# The standard library's own parser of patterns, which has no public name.
kinds: Final[Any] = import_module("re._constants")

TRANSLATED: Final[dict[str, Callable[[Any, Mapping[str, Any], Refer], dict[str, Any]]]] = {
    "type": _type,
    "exclusiveMinimum": _edge("minimum"),
    "exclusiveMaximum": _edge("maximum"),
    "properties": lambda value, said, refer: {
        "properties": {name: openapi_schema(schema, refer) for name, schema in value.items()}
    },
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


# -- Example arguments for a JSON Schema, made from its constraints. A validator has checked each of them.


DEEPEST: Final = 8
MAX_ITEMS: Final = 1_000

# The most values in one example: a schema that refers to itself several times has no end.
MAX_VALUES: Final = 3_000

# The most steps for one example: members that are copied, branches that are tried, items that are compared.
MAX_STEPS: Final = 100_000

# How many steps a text for a pattern counts as: the pattern is parsed, and tried with up to so many repeats.
PATTERN_STEPS: Final = 500

# The schema's own examples, which a server that is mounted here may have written.
MAX_GIVEN: Final = 5
MAX_GIVEN_BYTES: Final = 16_384

EXAMPLES_BY_FORMAT: Final = {
    "date": "2026-01-31",
    "time": "12:30:00Z",
    "date-time": "2026-01-31T12:30:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "binary": "aGk=",
    "json-pointer": "/a",
    "regex": "a+",
    "ipv4network": "192.0.2.0/24",
    "ipv6network": "2001:db8::/32",
    "ipvanyaddress": "192.0.2.1",
}


class Impossible(ValueError):
    """Nothing that fits was found."""


class Exhausted(Exception):
    """The steps are used up. No other branch is tried."""


def make_examples(schema: Mapping[str, Any]) -> list[Any]:
    """One value with the required members and one with all, as far as they differ and could be made.

    The schema's own examples come first, if they are few and short. Every example is valid under the schema, formats
    included. A schema that nothing can be made of has none.
    """
    from defserve.binding.explicit_schema import find_instance_errors

    found: list[Any] = []
    checked = [value for keyword, value in schema.items() if keyword != "examples"]
    if count_values(checked, MAX_EXAMPLE_SCHEMA_VALUES) > MAX_EXAMPLE_SCHEMA_VALUES:
        return found
    for candidate in _candidates(schema):
        try:
            fits = candidate not in found and not find_instance_errors(candidate, dict(schema), 1, with_formats=True)
        except Exception:
            continue  # a schema that cannot be followed, such as a reference to nowhere, has no examples
        if fits:
            found.append(candidate)
    return found


def _candidates(schema: Mapping[str, Any]) -> Iterator[Any]:
    given = schema.get("examples")
    yield from filter(_is_short, given[:MAX_GIVEN] if is_array(given) else ())
    bare = {keyword: value for keyword, value in schema.items() if keyword != "examples"}
    for whole in (False, True):
        try:
            made = Maker(schema, whole).value(bare, DEEPEST)
        except Exception:  # also of a schema that is none: its `required` may be a number, or its `minimum` a text
            continue
        if _is_short(made):
            yield made


def _is_short(value: Any) -> bool:
    from pydantic_core import to_json

    try:
        return len(to_json(value)) <= MAX_GIVEN_BYTES
    except (ValueError, RecursionError):
        return False


class Maker:
    """Makes one value. A `whole` one has its optional members too. Each method raises Exhausted after MAX_STEPS."""

    def __init__(self, root: Mapping[str, Any], whole: bool) -> None:
        self._root, self._whole, self._left, self._steps = root, whole, MAX_VALUES, MAX_STEPS

    def _charge(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise Exhausted

    def value(self, schema: Any, depth: int) -> Any:
        """A value for a schema. Raises Impossible."""
        self._left -= 1
        if self._left < 0:
            raise Exhausted
        self._charge(1)
        if schema is True or (is_mapping(schema) and not schema):
            return "anything"
        if not is_mapping(schema) or depth < 0:
            raise Impossible
        schema = self._flat(schema, depth)
        for given in ("const", "default"):
            if given in schema:
                return schema[given]
        for given in ("examples", "enum"):
            if is_array(schema.get(given)) and schema[given]:
                return schema[given][0]
        for branches in ("anyOf", "oneOf"):
            if schema.get(branches):
                return self._first(schema, branches, depth)
        return MAKERS[_kind(schema)](self, schema, depth)

    def _flat(self, schema: Mapping[str, Any], depth: int) -> JsonSchema:
        """The schema with its reference followed and its `allOf` merged in."""
        self._charge(len(schema))
        flat = dict(schema)
        for _ in range(DEEPEST):
            if "$ref" not in flat and "allOf" not in flat:
                return flat
            parts = [self._resolve_reference(flat.pop("$ref"))] if "$ref" in flat else []
            parts += flat.pop("allOf", [])
            for part in parts:
                flat = self._joined(flat, part)
        raise Impossible

    def _resolve_reference(self, reference: Any) -> Any:
        """What a local reference (`#/$defs/Order`) points to."""
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise Impossible
        self._charge(len(reference))
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not is_object(found) or step not in found:
                raise Impossible
            found = found[step]
        return found

    def _first(self, schema: JsonSchema, branches: str, depth: int) -> Any:
        self._charge(len(schema) + len(schema[branches]))
        rest = {key: value for key, value in schema.items() if key != branches}
        # Null is the least helpful example, so it comes last.
        for branch in sorted(schema[branches], key=lambda b: is_mapping(b) and b.get("type") == "null"):
            try:
                return self.value(self._joined(rest, branch), depth - 1)
            except (Impossible, Unmatched):
                continue
        raise Impossible

    def _joined(self, schema: JsonSchema, part: Any) -> JsonSchema:
        """Both schemas in one, as far as that is possible."""
        if part is True:
            return schema
        if not is_mapping(part):
            raise Impossible
        self._charge(len(schema) + len(part))
        joined = {**schema, **part}
        for member in ("properties", "$defs"):
            if member in schema and member in part:
                self._charge(len(schema[member]) + len(part[member]))
                joined[member] = {**schema[member], **part[member]}
        if "required" in schema and "required" in part:
            self._charge(len(schema["required"]) + len(part["required"]))
            joined["required"] = list(dict.fromkeys([*schema["required"], *part["required"]]))
        return joined

    def text(self, schema: JsonSchema, depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        if "pattern" in schema:
            self._charge(PATTERN_STEPS + 8 * len(schema["pattern"]))
            return make_matching_text(schema["pattern"], least)
        if schema.get("format") in EXAMPLES_BY_FORMAT:
            return EXAMPLES_BY_FORMAT[schema["format"]]
        if least > MAX_ITEMS:
            raise Impossible
        text = "text" if least <= 4 else "text ".ljust(least, "x")
        return text if len(text) <= most else text[: int(most)]

    def number(self, schema: JsonSchema, depth: int) -> int | float:
        whole = _kind(schema) == "integer"
        low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
        high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
        step = schema.get("multipleOf") or (1 if whole else None)
        if low == -math.inf and high == math.inf:
            return step or 1.5
        if low == -math.inf:
            low = high - 2 * (step or 1)
        start: int | float = math.ceil(low / step) * step if step else low
        if start == schema.get("exclusiveMinimum"):
            start = start + step if step else (low + min(high, low + 2)) / 2
        return int(start) if whole else start

    def array(self, schema: JsonSchema, depth: int) -> list[Any]:
        made: list[Any] = [self.value(head, depth - 1) for head in schema.get("prefixItems") or ()]
        wanted = max(schema.get("minItems", 0), 1 if self._whole and schema.get("maxItems", 1) else 0)
        if wanted > MAX_ITEMS:
            raise Impossible
        rest = schema.get("items", {})
        while len(made) < wanted:
            item = self.value(rest, depth - 1)
            made.append(self._another(item, rest, made) if schema.get("uniqueItems") else item)
        return made

    def object(self, schema: JsonSchema, depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties") or {}
        made = {name: self.value(properties.get(name, {}), depth - 1) for name in schema.get("required") or ()}
        for name in properties if self._whole or schema.get("minProperties", 0) > len(made) else ():
            if name not in made:
                try:
                    made[name] = self.value(properties[name], depth - 1)
                except (Impossible, Unmatched):
                    continue
        extra = schema.get("additionalProperties", {})
        if schema.get("minProperties", 0) > MAX_ITEMS:
            raise Impossible
        while len(made) < schema.get("minProperties", 0):
            made[f"key{len(made) + 1}"] = self.value(extra, depth - 1)
        if self._whole and not properties and is_mapping(extra) and extra and not made:
            made["key1"] = self.value(extra, depth - 1)
        return made

    def _another(self, item: Any, schema: Any, known: list[Any]) -> Any:
        """An item that is not among the known ones. Raises Impossible."""
        choices: list[Any] = list(schema.get("enum") or []) if is_mapping(schema) else []
        if isinstance(item, str):
            choices += [item, *(f"{item}{number}" for number in range(2, len(known) + 3))]
        elif isinstance(item, int | float) and not isinstance(item, bool):
            choices += [item + number for number in range(len(known) + 2)]
        self._charge(len(choices))
        for choice in [item, *choices]:
            self._charge(len(known))
            if choice not in known:
                return choice
        raise Impossible


def _kind(schema: Mapping[str, Any]) -> str:
    if named := [kind for kind in as_list(schema.get("type")) if kind in MAKERS]:
        return sorted(named, key=lambda kind: kind == "null")[0]
    return next((kind for member, kind in TELLING.items() if member in schema), "string")


# A keyword that only one type has.
TELLING: Final = {"properties": "object", "items": "array", "minimum": "number", "maximum": "number"}

MAKERS: Final[dict[str, Callable[[Maker, JsonSchema, int], Any]]] = {
    "string": Maker.text,
    "integer": Maker.number,
    "number": Maker.number,
    "boolean": lambda maker, schema, depth: True,
    "null": lambda maker, schema, depth: None,
    "array": Maker.array,
    "object": Maker.object,
}
parser: Final[Any] = import_module("re._parser")

# The characters to choose from if the pattern allows several, in this order.
PLAIN: Final = "a1A0-_ .:/@bcdexyzBCXYZ23456789,+#\t\n"
MAX_REPEATS: Final = 64
MAX_MADE: Final = 2_000
"""Characters of a text, and of each part of it."""


class Unmatched(ValueError):
    """No text was found for a pattern."""


def make_matching_text(pattern: str, at_least: int = 0) -> str:
    """A text of at least so many characters in which `pattern` is found. Raises Unmatched."""
    try:
        # A server that is mounted here may have written it: what no text of a caller meets is not parsed either.
        compile_pattern(pattern)
        tree: Any = parser.parse(pattern)
        for repeats in range(min(at_least, MAX_REPEATS) + 1):
            text = _all(tree, repeats)
            if len(text) >= at_least and is_pattern_found(pattern, text):
                return text
    except (PatternProblem, re.error, RecursionError, OverflowError, KeyError, StopIteration, ValueError) as error:
        raise Unmatched(pattern) from error
    raise Unmatched(pattern)


def _all(items: Any, repeats: int) -> str:
    text = ""
    for kind, value in items:
        text += PARTS[kind](value, repeats)
        _refuse_long(len(text))
    return text


def _refuse_long(length: int) -> None:
    if length > MAX_MADE:
        raise Unmatched(f"a text of {length} characters")


def _expand_repeat(value: Any, repeats: int) -> str:
    least, most, items = value
    text, times = _all(items, repeats), min(max(least, repeats), int(most), max(least, MAX_REPEATS))
    _refuse_long(len(text) * times)
    return text * times


def _one_of(items: Any, repeats: int) -> str:
    wanted = not any(kind is kinds.NEGATE for kind, _ in items)
    literals = {chr(value) for kind, value in items if kind is kinds.LITERAL}
    others = [(kind, value) for kind, value in items if kind is not kinds.LITERAL]
    return next(
        letter
        for letter in _candidate_letters(items)
        if (letter in literals or any(_can_match_letter(k, v, letter) for k, v in others)) is wanted
    )


def _candidate_letters(items: Any) -> Iterator[str]:
    yield from PLAIN
    for kind, value in items:
        if kind is kinds.LITERAL:
            yield chr(value)
        elif kind is kinds.RANGE:
            yield chr(value[0])


def _can_match_letter(kind: Any, value: Any, letter: str) -> bool:
    if kind is kinds.RANGE:
        return value[0] <= ord(letter) <= value[1]
    return kind is kinds.CATEGORY and re.fullmatch(CATEGORIES[value], letter, re.ASCII) is not None


CATEGORIES: Final[dict[Any, str]] = {
    kinds.CATEGORY_DIGIT: r"\d",
    kinds.CATEGORY_NOT_DIGIT: r"\D",
    kinds.CATEGORY_WORD: r"\w",
    kinds.CATEGORY_NOT_WORD: r"\W",
    kinds.CATEGORY_SPACE: r"\s",
    kinds.CATEGORY_NOT_SPACE: r"\S",
}

# Assertions and references to groups are missing here: patterns with them get no example.
PARTS: Final[dict[Any, Callable[[Any, int], str]]] = {
    kinds.LITERAL: lambda value, repeats: chr(value),
    kinds.NOT_LITERAL: lambda value, repeats: next(letter for letter in PLAIN if ord(letter) != value),
    kinds.ANY: lambda value, repeats: "a",
    kinds.AT: lambda value, repeats: "",
    kinds.IN: _one_of,
    kinds.CATEGORY: lambda value, repeats: _one_of([(kinds.CATEGORY, value)], repeats),
    kinds.BRANCH: lambda value, repeats: _all(value[1][0], repeats),
    kinds.SUBPATTERN: lambda value, repeats: _all(value[3], repeats),
    kinds.MAX_REPEAT: _expand_repeat,
    kinds.MIN_REPEAT: _expand_repeat,
    kinds.POSSESSIVE_REPEAT: _expand_repeat,
    kinds.ATOMIC_GROUP: _all,
}
