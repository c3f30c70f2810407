"""What is wrong with a value, worded for a model: paths, values cut short, one phrase for each kind of error.

Secrets are never shown. Imported only when something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any

import pydantic_core
from pydantic_core import ValidationError

from defserve.base.hidden_characters import replace_hidden_characters
from defserve.binding.json_schemas import list_subschemas, resolve_leaf_schemas, walk_graph, walk_schema
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object
from defserve.errors import MAX_NAMES_IN_REFUSAL, Problem, find_nearest_names

MAX_PROBLEMS = 20
MANY = 10_000
MORE_PROBLEMS = Problem("", "and perhaps more")
_ABSENT: Any = object()


class _Error:
    """One error with its real path. `unions` are the labels of union branches that pydantic put into the path."""

    __slots__ = ("given", "path", "unions", "type", "value", "context", "message", "expected")

    def __init__(self, details: Any, given: Any) -> None:
        self.given = given
        self.type: str = details["type"]
        self.value: Any = details["input"]
        self.context: dict[str, Any] = details.get("ctx", {})
        self.message: str = details["msg"]
        wanted = EXPECTED.get(self.type)
        choices: str = self.context.get("expected", "") if self.type in _CHOICE_ERRORS else ""
        self.expected: Sequence[str] = (wanted,) if wanted else _list_choices(choices)
        self.path: tuple[str | int, ...] = ()
        self.unions: list[tuple[int, str]] = []
        self._locate(details["loc"], given)

    def _locate(self, loc: tuple[str | int, ...], given: Any) -> None:
        """Follow `loc` through the given value. A step that is not in the value is a label, unless it is missing."""
        here: Any = given
        path: list[str | int] = []
        for position, step in enumerate(loc):
            last = position == len(loc) - 1
            if isinstance(step, int) and is_array(here):
                path.append(step)
                here = here[step] if step < len(here) else _ABSENT
            elif isinstance(step, str) and is_object(here) and step in here:
                path.append(step)
                here = here[step]
            elif step == "[key]":
                self.message = f"key: {self.message}"
            elif last and self.type == "missing":
                path.append(step)
            else:
                self.unions.append((len(path), str(step)))
        self.path = tuple(path)


def explain_validation_error(error: ValidationError, given: Any, schema: JsonSchema) -> tuple[Problem, ...]:
    """The problems behind a validation error, at most MOST and a count of the rest."""
    if (count := error.error_count()) > MANY:
        # Each problem costs microseconds and a dict, and one message can hold millions.
        return (Problem("", f"{count} problems: the arguments do not have the shape of the schema"),)
    errors = [
        _Error(details, given)
        for details in error.errors(include_url=False)
        if details["type"] != "default_factory_not_called"  # it waits for a value that has a problem of its own
    ]
    settled = _settle(errors)
    problems = dict.fromkeys(_problem(one, schema) for one in settled[:MAX_PROBLEMS])
    if len(settled) > MAX_PROBLEMS:
        problems[Problem("", f"and {len(settled) - MAX_PROBLEMS} more problems")] = None
    return tuple(problems)


def _problem(error: _Error, schema: JsonSchema) -> Problem:
    if error.type == "extra_forbidden":
        *outer, name = error.path
        return describe_unknown_argument(tuple(outer), str(name), list_field_names(schema, outer))
    if error.type == "dict_type" and not error.path:
        return Problem("", f"arguments must be an object, got {format_short_json(error.value)}")
    path = error.path
    if error.type.startswith("union_tag_"):
        tag = str(error.context.get("discriminator", "")).strip("'")
        if tag.isidentifier():
            path = (*path, tag)
            if is_object(error.value):
                error.value = error.value.get(tag)
    return Problem(format_value_path(path), _reason(error, is_secret_path(schema, path)))


def _reason(error: _Error, secret: bool) -> str:
    if error.type in ("missing", "union_tag_not_found"):
        return "missing"
    if error.type in ("value_error", "assertion_error"):
        return " ".join(str(error.context.get("error") or error.message).split())
    got = describe_json_type(error.value) if secret else format_short_json(error.value)
    error.context["asked"] = "" if secret else str(error.value)[:SHOWN]
    if error.type in ("too_short", "too_long"):
        got = str(error.context.get("actual_length"))
        error.context["noun"] = "character" if isinstance(error.value, str) else "item"
    if error.expected:
        return f"expected {format_alternatives(error.expected, error.context['asked'])}, got {got}"
    if rule := BROKEN.get(error.type):
        return f"{rule(error.context)}, got {got}"
    if secret:
        return f"not valid, got {got}"
    message = error.message.replace("\n", " ")
    if not message[1:2].isupper():  # no acronym, such as URL
        message = message[:1].lower() + message[1:]
    return f"{message.replace('input should be', 'must be')}, got {got}"


def _settle(errors: list[_Error]) -> list[_Error]:
    """The errors, with the branches of each union combined into one."""
    settled: list[_Error | Callable[[], list[_Error]]] = []
    unions: dict[tuple[str | int, ...], dict[str, list[_Error]]] = {}
    for error in errors:
        if not error.unions:
            settled.append(error)
            continue
        depth, label = error.unions.pop(0)
        at = error.path[:depth]
        if at not in unions:
            unions[at] = {}
            settled.append(lambda at=at: _one_of(at, unions[at]))
        unions[at].setdefault(label, []).append(error)
    return [found for one in settled for found in ([one] if isinstance(one, _Error) else one())]


def _one_of(at: tuple[str | int, ...], branches: dict[str, list[_Error]]) -> list[_Error]:
    """The errors to report for a union if no branch fits.

    If the value has the shape of exactly one branch, its errors are the helpful ones; of several, those that all have.
    """
    told = {label: _settle(errors) for label, errors in branches.items()}
    single = {label: errors[0] for label, errors in told.items() if len(errors) == 1}
    mismatched = {label: error for label, error in single.items() if error.path == at and error.expected}
    shaped = [errors for label, errors in told.items() if label not in mismatched]
    if len(shaped) == 1:
        return shaped[0]
    if shaped and (shared := _find_shared_errors(at, shaped)):
        return shared
    summary = next(iter(mismatched.values()), None) or _at(at, shaped[0][0])
    summary.expected = [each for label in told for each in _list_expected(label, mismatched.get(label))]
    return [summary]


def _find_shared_errors(at: tuple[str | int, ...], branches: list[list[_Error]]) -> list[_Error]:
    """What is wrong inside the value, whichever branch was meant."""
    first, *others = [{error.path: error for error in errors if error.path != at} for errors in branches]
    shared: list[_Error] = []
    for path, error in first.items():
        same = [other[path] for other in others if path in other]
        if len(same) == len(others) and error.expected and all(each.expected for each in same):
            error.expected = [name for each in (error, *same) for name in each.expected]
            shared.append(error)
        elif len(same) == len(others) and all(each.message == error.message for each in same):
            shared.append(error)
    return shared


def _list_expected(label: str, mismatch: _Error | None) -> Sequence[str]:
    if mismatch is not None:
        return mismatch.expected
    name = label.partition("[")[0]
    return [{"list": "array", "dict": "object", "set": "array", "tuple": "array"}.get(name, name)]


def _at(at: tuple[str | int, ...], error: _Error) -> _Error:
    """A summary at the union's own place, which may be above the error's."""
    error.path, error.type, error.value = at, "union", error.given
    for step in at:
        error.value = error.value[step]
    return error


# -- How a problem is worded for a model: paths, values cut short, and one phrase for each kind of error.


SHOWN = 40
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a string"),
    ((list, tuple), "an array"),
    (dict, "an object"),
    (type(None), "null"),
)

# pydantic error type -> the JSON type that was wanted.
EXPECTED: dict[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "integer"),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing", "complex_type"), "number"),
    "finite_number": "number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "boolean"),
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode", "bytes_type"), "string"),
    **dict.fromkeys(
        (
            *("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "iteration_error"),
            "named_tuple_type",
        ),
        "array",
    ),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), "object"),
    "none_required": "null",
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "date (YYYY-MM-DD)"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "date and time (ISO 8601)"),
    **dict.fromkeys(("time_type", "time_parsing"), "time (HH:MM:SS)"),
    **dict.fromkeys(("time_delta_type", "time_delta_parsing"), "duration (ISO 8601)"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "UUID"),
    **dict.fromkeys(("url_type", "url_parsing"), "URL"),
    "path_type": "path",
    **{f"ip_v{n}_{kind}": f"IPv{n} {kind}" for n in (4, 6) for kind in ("address", "network", "interface")},
}

_Context = dict[str, Any]

# pydantic error type -> the rule that was broken.
BROKEN: dict[str, Callable[[_Context], str]] = {
    "greater_than_equal": lambda c: f"must be at least {c['ge']}",
    "greater_than": lambda c: f"must be greater than {c['gt']}",
    "less_than_equal": lambda c: f"must be at most {c['le']}",
    "less_than": lambda c: f"must be less than {c['lt']}",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']}",
    "string_too_short": lambda c: f"must have at least {format_count(c['min_length'], 'character')}",
    "string_too_long": lambda c: f"must have at most {format_count(c['max_length'], 'character')}",
    "bytes_too_short": lambda c: f"must have at least {format_count(c['min_length'], 'byte')}",
    "bytes_too_long": lambda c: f"must have at most {format_count(c['max_length'], 'byte')}",
    "too_short": lambda c: f"must have at least {format_count(c['min_length'], c['noun'])}",
    "too_long": lambda c: f"must have at most {format_count(c['max_length'], c['noun'])}",
    "string_pattern_mismatch": lambda c: f"must match the pattern {c['pattern']}",
    "union_tag_invalid": lambda c: f"expected {format_alternatives(_list_choices(c['expected_tags']), c['asked'])}",
}


def format_count(number: Any, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_alternatives(options: Iterable[str], asked: str = "") -> str:
    """`a`, `a or b`, `a, b or c`. Of many, the nearest to what was asked for, and how many more there are."""
    distinct = list(dict.fromkeys(options))
    if (more := len(distinct) - MAX_NAMES_IN_REFUSAL) > 0:
        nearest = find_nearest_names(asked, distinct, min_likeness=0) if asked else distinct[:MAX_NAMES_IN_REFUSAL]
        distinct = [*nearest, f"{more} more"]
    return " or ".join(filter(None, (", ".join(distinct[:-1]), distinct[-1]))) if distinct else ""


def format_value_path(path: Sequence[str | int]) -> str:
    """`items[0].qty`; a key that is not an identifier is quoted: `headers["x y"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("-", "_").isidentifier() and len(step) <= 2 * SHOWN:
            text += f".{step}" if text else step
        else:
            text += f"[{format_short_json(step)}]"
    return text


def format_short_json(value: Any) -> str:
    """A value as JSON, cut to about forty characters."""
    # Only the beginning is encoded: a value may be megabytes.
    if isinstance(value, str) or is_array(value):
        value = value[: SHOWN + 1]
    elif is_object(value):
        value = dict(islice(value.items(), SHOWN))
    try:
        text = pydantic_core.to_json(value, inf_nan_mode="constants").decode()
    except (ValueError, RecursionError, UnicodeError):
        text = ascii(value) if isinstance(value, str) else describe_json_type(value)
    text = replace_hidden_characters(text[: SHOWN + 3], lambda _: "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= SHOWN + 2 else text[: SHOWN - 1] + "…"


def describe_json_type(value: Any) -> str:
    """What kind of JSON value this is, for values that must not be shown."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "something else")


def describe_unknown_argument(outer: tuple[str | int, ...], name: str, known: Iterable[str]) -> Problem:
    """`unknown argument "limt"; did you mean "limit"?`, or inside of an argument, `order.qt: unknown field; …`."""
    names = list(known)
    if close := find_nearest_names(name, names):
        rest = f'; did you mean "{close[0]}"?'
    elif outer:
        rest = ""
    else:
        is_long = len(names) > MAX_NAMES_IN_REFUSAL
        shown = f"known: {', '.join(names[:MAX_NAMES_IN_REFUSAL])}{', …' if is_long else ''}"
        rest = f"; {shown if names else 'there are none'}"
    if outer:
        return Problem(format_value_path((*outer, name)), f"unknown field{rest}")
    return Problem("", f"unknown argument {format_short_json(name)}{rest}")


@lru_cache(maxsize=16)
def _list_choices(text: str) -> tuple[str, ...]:
    """Python's list of choices in JSON's spelling. Of an enum's member, `<Color.RED: 'red'>`, that is its value."""
    return tuple(filter(None, map(_spell_choice, _CHOICE.finditer(text))))


def _spell_choice(found: re.Match[str]) -> str:
    quoted, other = found.groups()
    if quoted is None:
        return "" if other == "or" else _WORDS.get(other, other)
    inner = quoted[1:-1]
    return f'"{inner}"' if quoted[0] == '"' else '"{}"'.format(inner.replace("\\'", "'").replace('"', '\\"'))


_CHOICE = re.compile(
    r"""(?:<[\w.]+:\ )?(?:
    ('(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | ([\[{].*?[\]}](?=,\ |$) | [^\s,>]+))>?""",
    re.VERBOSE,
)
_CHOICE_ERRORS = {"literal_error", "enum"}
_WORDS = {"True": "true", "False": "false", "None": "null"}


# -- Which values must never be shown: secrets by name, by `writeOnly` or `format: password`, and containers of them.


Path = Sequence[str | int]


def is_secret_path(schema: JsonSchema, path: Path) -> bool:
    """Whether the value at a path is secret, holds a secret, or is inside one.

    A path that is not in the schema is secret if anything in the schema is.
    """
    from defserve.base.redaction import is_secret_name

    if any(isinstance(step, str) and is_secret_name(step) for step in path):
        return True
    if not any(map(_is_marked_secret, walk_schema(schema))):
        return False
    here = _alternatives(schema, [schema])
    for step in path:
        if any(map(_is_marked_secret, here)):
            return True
        here = _alternatives(schema, _inside(here, step))
    return not here or _holds_secret(schema, here)


def list_field_names(schema: JsonSchema, path: Path) -> list[str]:
    """The names of the fields that a schema describes for the object at a path."""
    here = _alternatives(schema, [schema])
    for step in path:
        here = _alternatives(schema, _inside(here, step))
    return [name for each in here for name in each.get("properties", {})]


def _is_marked_secret(schema: JsonSchema) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _inside(schemas: Iterable[JsonSchema], step: str | int) -> Iterator[JsonSchema]:
    for schema in schemas:
        if isinstance(step, int):
            prefix: list[Any] = schema.get("prefixItems", [])
            yield from filter(is_object, [*prefix[step : step + 1], schema.get("items")])
        else:
            named: dict[str, Any] = schema.get("properties", {})
            patterns: dict[str, Any] = schema.get("patternProperties", {})
            yield from filter(is_object, [named.get(step), *patterns.values(), schema.get("additionalProperties")])


def _alternatives(root: JsonSchema, schemas: Iterable[JsonSchema]) -> list[JsonSchema]:
    """The schemas, with the targets of their references and the branches of their unions."""

    def inside(here: JsonSchema) -> Iterable[JsonSchema]:
        branches = [one for name in ("anyOf", "oneOf", "allOf") for one in here.get(name, [])]
        return filter(is_object, (*branches, _resolve_ref(root, here.get("$ref"))))

    return list(walk_graph(schemas, inside))


def _resolve_ref(root: JsonSchema, ref: Any) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    here: Any = root
    for step in ref[1:].split("/")[1:]:
        here = here.get(step.replace("~1", "/").replace("~0", "~")) if is_object(here) else None
    return here


def _holds_secret(root: JsonSchema, schemas: list[JsonSchema]) -> bool:
    def inside(here: JsonSchema) -> Iterable[JsonSchema]:
        return filter(is_object, (*list_subschemas(here), _resolve_ref(root, here.get("$ref"))))

    return any(map(_is_marked_secret, walk_graph(schemas, inside)))


# -- Infinities and NaN in results: JSON has none, so they are sent as null. A schema that says number refuses null.


_Schemas = list[Any]
_Path = tuple[Any, ...]


def describe_refused_number(value: Any, schema: JsonSchema) -> str | None:
    """What is wrong with the first such number whose place in the schema does not take null; None if there is none."""
    defs: JsonSchema = schema.get("$defs", {})
    found = _find_refused_number(value, resolve_leaf_schemas([schema], defs), defs, ())
    if found is None:
        return None
    path, number = found
    at = ".".join(map(str, path))
    return f"{at}{': ' if at else ''}{number} has no JSON form: return None, and declare float | None"


def _find_refused_number(value: Any, options: _Schemas, defs: JsonSchema, path: _Path) -> tuple[_Path, float] | None:
    if isinstance(value, float):
        return None if isfinite(value) or _take_null(options) else (path, value)
    if is_object(value):
        members: list[tuple[Any, Any]] = [*value.items()]
    else:
        members = [*enumerate(value)] if is_array(value) else []
    last: tuple[_Schemas, _Schemas] = [], []
    for key, member in members:
        inside = _member_schemas(options, key)
        if not last[0] or inside != last[0]:  # the items of a list have one schema, mostly
            last = inside, resolve_leaf_schemas(inside, defs)
        if (found := _find_refused_number(member, last[1], defs, (*path, key))) is not None:
            return found
    return None


def _member_schemas(options: _Schemas, key: Any) -> _Schemas:
    """What the schemas say of a member: those that name it, or else all. True: it may be anything."""
    schemas = [option for option in options if is_object(option)]
    if isinstance(key, str):
        named = [option["properties"][key] for option in schemas if key in option.get("properties", {})]
        return named or [option.get("additionalProperties", True) for option in schemas]
    listed = [option["prefixItems"][key] for option in schemas if key < len(option.get("prefixItems", ()))]
    return listed or [option.get("items", True) for option in schemas if "items" in option]


def _take_null(options: _Schemas) -> bool:
    return not options or any(
        option is True or (is_object(option) and "null" in as_list(option.get("type", "null"))) for option in options
    )
