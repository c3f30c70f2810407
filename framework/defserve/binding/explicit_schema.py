"""Arguments described by an author's own JSON Schema, kept word for word and checked with jsonschema.

Every check is bounded in steps, `unevaluatedItems` and `unevaluatedProperties` too: their time grows with the value and
not with its square.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import islice
from json.encoder import encode_basestring_ascii
from time import thread_time
from typing import TYPE_CHECKING, Any, cast

from defserve.binding.arguments import refuse_infinity
from defserve.binding.json_schemas import ensure_properties, transform_subschemas, walk_schema
from defserve.binding.patterns import PatternProblem, TextTooLong, compile_pattern, find_pattern_problem
from defserve.binding.problems import (
    describe_json_type,
    describe_unknown_argument,
    format_alternatives,
    format_count,
    format_short_json,
    format_value_path,
    is_secret_path,
    list_field_names,
)
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object, read_required_names
from defserve.errors import BadArguments, Problem, UsageError

if TYPE_CHECKING:
    from defserve.binding.signature import Signature


MAX_UNIQUE_ITEMS = 500
MAX_PROBLEMS = 20
MAX_STEPS = 10_000
"""Keywords applied to values in one check. `STEPS_A_VALUE` more for every value inside."""
SECONDS_A_STEP = 30e-6
"""What a keyword takes, about. The time in which patterns are compiled is counted in steps too."""
STEPS_A_VALUE = 50
MATCHED_A_STEP = 500
"""Characters times positions of a pattern that are matched for one step."""
WRITTEN_A_STEP = 5_000
"""Characters of items that are written for one step, to find two that are equal."""
MAX_CACHED_SCHEMA_LENGTH = 4096
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class ExplicitArgumentsSchema:
    """Used like Arguments, but `validate` returns the values unchanged.

    `names` are the parameters of the function; others are refused, whatever the schema says. None: it takes any.
    `otherwise` checks what would take this one too many steps. None: such arguments are refused.
    """

    __slots__ = ("schema", "_made", "_names", "_otherwise")

    may_annotate = True

    def __init__(
        self,
        schema: JsonSchema,
        *,
        where: str = "",
        subject: str = "input schema",
        names: Collection[str] | None = None,
        otherwise: ExplicitArgumentsSchema | None = None,
    ) -> None:
        """Raises UsageError for a schema that is wrong, or that a peer could abuse."""
        self.schema, self._names, self._otherwise = schema, names, otherwise

        def wrong(problem: str, fix: str) -> UsageError:
            return UsageError(f"{subject}: {problem}", where=where, fix=fix)

        self._made = _get_validator(schema, wrong)

    def publish_schema(self, dialect: str | None = None) -> JsonSchema:
        """The schema as its author wrote it, whatever the dialect; with `properties`, also if there are none."""
        return ensure_properties(self.schema)

    @classmethod
    def from_trusted_schema(cls, schema: JsonSchema) -> ExplicitArgumentsSchema:
        """A schema that this framework has written. It is checked at the first call: jsonschema takes 5 MB."""
        made = cls.__new__(cls)
        made.schema, made._names, made._otherwise, made._made = schema, None, None, None
        return made

    @classmethod
    def from_signature(cls, signature: Signature, schema: JsonSchema) -> ExplicitArgumentsSchema:
        """The schema for a function. Raises UsageError if the schema and the parameters do not match."""
        required = {parameter.name: parameter.required for parameter in signature.parameters}
        names = None if signature.takes_rest else list(required)
        made = cls(schema, where=signature.where, subject=f"{signature.name}: input schema", names=names)

        def wrong(problem: str, fix: str) -> UsageError:
            return UsageError(f"{signature.name}: {problem}", where=signature.where, fix=fix)

        for name in schema.get("properties", {}):
            if name in {injected.name for injected in signature.injected}:
                raise wrong(f"parameter {name!r} is injected, yet the schema has it", "take it out of the schema")
            if names is not None and name not in names:
                raise wrong(
                    f"the schema has {name!r}, but the function does not", f"add a parameter {name!r} or **rest"
                )
        stated = read_required_names(schema)
        for name in (name for name, needed in required.items() if needed):
            if name not in stated:
                raise wrong(
                    f"parameter {name!r} has no default, but the schema does not require it",
                    f'add it to "required", or write {name}=None',
                )
        return made

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """The keyword arguments. Raises BadArguments with one problem for each field."""
        given = {} if given is None else given
        if not isinstance(given, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArguments((Problem("", f"arguments must be an object, got {format_short_json(given)}"),))
        try:
            with _limit_steps(given):
                problems = self._problems(given)
        except _TooManySteps:
            if self._otherwise is not None:
                return self._otherwise.validate(given)
            raise BadArguments((Problem("", "too many forms to check: send less, or nest it less deeply"),)) from None
        except Exception as error:
            # jsonschema may raise anything for odd values (depth, huge numbers). Such values are refused.
            raise BadArguments((Problem("", f"arguments cannot be checked ({type(error).__name__})"),)) from None
        if problems:
            raise BadArguments(tuple(problems))
        refuse_infinity(given)
        return dict(given)

    def prepare(self) -> None:
        """Load what checks values: jsonschema, and the grammars that it compiles at import. `validate` does it too."""
        self._made = self._made or _get_validator(self.schema, lambda problem, fix: UsageError(problem, fix=fix))

    def _problems(self, given: dict[str, Any]) -> list[Problem]:
        problems: dict[Problem, None] = {}
        if self._names is not None:
            unknown = islice((name for name in given if name not in self._names), MAX_PROBLEMS)
            problems |= {describe_unknown_argument((), name, self._names): None for name in unknown}
        self.prepare()
        for error in self._made.iter_errors(given):
            for problem in _to_problems(error, self.schema):
                problems[problem] = None
            if len(problems) >= MAX_PROBLEMS:
                break
        return list(problems)[:MAX_PROBLEMS]


def is_valid_instance(value: Any, schema: JsonSchema) -> bool:
    """Whether a value fits a schema. False as well if the schema cannot be used, or takes too many steps."""
    try:
        return not find_instance_errors(value, schema, 1)
    except Exception:
        return False


def find_instance_errors(value: Any, schema: JsonSchema, most: int, *, with_formats: bool = False) -> list[Any]:
    """The first errors of a value under a schema that anybody may have written.

    A pattern that cannot be run is not enforced. Raises whatever jsonschema raises for a schema that is none, and for
    a check that takes too many steps.
    """
    from jsonschema import Draft202012Validator as Draft

    registry, _ = _registry(schema)
    checker = Draft.FORMAT_CHECKER if with_formats else None
    validator = _extend_validator(Draft)(_enforceable(schema), registry=registry, format_checker=checker)
    with _limit_steps(value):
        return list(islice(validator.iter_errors(value), most))


def _enforceable(schema: JsonSchema) -> JsonSchema:
    """Without `unevaluatedProperties` beside `patternProperties`: jsonschema would match those with `re`."""
    if not _mixes_unevaluated(schema):
        return schema

    def change(inner: JsonSchema) -> JsonSchema:
        made = transform_subschemas(inner, change)
        made.pop("unevaluatedProperties", None)
        return made

    return change(schema)


def _mixes_unevaluated(schema: JsonSchema) -> bool:
    words = {
        word for node in walk_schema(schema) for word in ("patternProperties", "unevaluatedProperties") if word in node
    }
    return len(words) == 2


class _TooManySteps(Exception):
    """Checking would take too long."""


_STEPS: ContextVar[Iterator[int]] = ContextVar("steps")


@contextmanager
def _limit_steps(value: Any) -> Generator[None]:
    """Inside, checks end with _TooManySteps after as many steps as this value may take."""
    token = _STEPS.set(iter(range(MAX_STEPS + STEPS_A_VALUE * _values_in(value))))
    try:
        yield
    finally:
        _STEPS.reset(token)


def _values_in(value: Any) -> int:
    count, pending = 0, [value]
    while pending:
        here: Any = pending.pop()
        count += 1
        if isinstance(here, dict | list):
            pending.extend(here.values() if isinstance(here, dict) else here)  # pyright: ignore
    return count


_Wrong = Callable[[str, str], UsageError]


@dataclass(frozen=True, slots=True)
class _Written:
    """A schema, equal to any other that is written alike."""

    text: str
    schema: Any = field(compare=False)
    wrong: _Wrong = field(compare=False)


def _get_validator(schema: Any, wrong: _Wrong) -> Any:
    """The validator for a schema. Checking takes some 10 ms, so that of a short schema is remembered."""
    try:
        written = _Written(repr(schema), schema, wrong)
        return (_validator if len(written.text) > MAX_CACHED_SCHEMA_LENGTH else _get_cached_validator)(written)
    except RecursionError:
        raise wrong("it is nested too deeply", "flatten it") from None


@lru_cache(maxsize=64)
def _get_cached_validator(written: _Written) -> Any:
    # Of a copy: the author may change theirs.
    return _validator(replace(written, schema=deepcopy(written.schema)))


def _validator(written: _Written) -> Any:
    import jsonschema
    from jsonschema.validators import validator_for

    schema, wrong = written.schema, written.wrong
    if not is_object(schema) or schema.get("type") != "object":
        raise wrong('its root must be {"type": "object"}', 'write "type": "object" at the root')
    dialect: Any = schema.get("$schema", _DIALECT)
    unknown: Any = None
    kind: Any = validator_for({"$schema": dialect}, default=unknown) if isinstance(dialect, str) else unknown
    if kind is unknown:
        raise wrong(f"unknown dialect {dialect!r}", f'remove "$schema" or write "{_DIALECT}"')
    try:
        # Without formats: those would have Python's `re` judge patterns, which are ECMAScript's.
        kind.check_schema(schema, format_checker=None)
    except jsonschema.SchemaError as error:
        raise wrong(f"{error.json_path}: {error.message}", "correct the schema") from None
    if _mixes_unevaluated(schema):
        raise wrong(
            "unevaluatedProperties cannot be checked beside patternProperties",
            'write "additionalProperties" where the patterns are',
        )
    registry, resolver = _registry(schema)
    for node in walk_schema(schema):
        _lint(node, wrong)
        _resolve(node, resolver, wrong)
    return _extend_validator(kind)(schema, registry=registry)


@cache
def _extend_validator(kind: Any) -> Any:
    """A validator whose steps are counted, and whose patterns are matched in linear time.

    It keeps only a few errors of each branch of a union: jsonschema would keep them all. It compares decimals as they
    are written: to jsonschema, 19.99 is no multiple of 0.01.
    """
    import jsonschema
    from jsonschema import validators

    untyped: Any = validators

    def iter_branch_errors(validator: Any, options: Any, value: Any) -> Iterator[list[Any]]:
        for position, option in enumerate(options):
            yield list(islice(validator.descend(value, option, schema_path=position), MAX_PROBLEMS))

    def any_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[Any]:
        errors: list[Any] = []
        for branch in iter_branch_errors(validator, options, value):
            if not branch:
                return
            errors += branch
        yield jsonschema.ValidationError("fits no form", context=errors)

    def one_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[Any]:
        branches = list(iter_branch_errors(validator, options, value))
        fitting = branches.count([])
        if fitting != 1:
            context = [] if fitting else [error for branch in branches for error in branch]
            yield jsonschema.ValidationError("fits more than one form" if fitting else "fits no form", context=context)

    def multiple_of(validator: Any, wanted: Any, value: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(value, "number") and not _is_multiple(value, wanted):
            yield jsonschema.ValidationError("is no multiple")

    def pattern(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not validator.is_type(value, "string"):
            return
        most = schema.get("maxLength")
        if isinstance(most, int) and len(value) > most:
            return  # which is an error of its own
        try:
            if _matches(wanted, value) is False:
                yield jsonschema.ValidationError(f"{format_short_json(value)} does not match {wanted!r}")
        except TextTooLong as error:
            yield jsonschema.ValidationError(str(error))

    def pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[Any]:
        for wanted, option in patterns.items() if validator.is_type(value, "object") else ():
            for name, inner in value.items():
                if _name_matches(wanted, name):
                    yield from validator.descend(inner, option, path=name, schema_path=wanted)

    def additional_properties(validator: Any, option: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not validator.is_type(value, "object"):
            return
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        # A name may fit a pattern that cannot be run.
        fitting = (name for name in value if not any(_name_matches(one, name) is not False for one in patterns))
        extras = [name for name in fitting if name not in known]
        if validator.is_type(option, "object"):
            for name in extras:
                yield from validator.descend(value[name], option, path=name)
        elif extras and not option:
            yield jsonschema.ValidationError(
                f"unknown fields: {', '.join(map(format_short_json, extras[:MAX_PROBLEMS]))}",
                instance={name: value[name] for name in extras},
            )

    def unique_items(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not wanted or not validator.is_type(value, "array"):
            return
        most = schema.get("maxItems")
        if isinstance(most, int) and len(value) > most:
            return  # which is an error of its own
        if _has_equal_items(value):
            yield jsonschema.ValidationError("has an item twice")

    def count_check(check: Any) -> Any:
        def run_check(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
            _spend(1)
            return check(validator, wanted, value, schema)

        return run_check

    own: dict[str, Any] = {
        **kind.VALIDATORS,
        "anyOf": any_of,
        "oneOf": one_of,
        "multipleOf": multiple_of,
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
    }
    # Earlier drafts do not know them.
    newer = {
        "unevaluatedItems": partial(_check_unevaluated, "array"),
        "unevaluatedProperties": partial(_check_unevaluated, "object"),
    }
    own |= {keyword: check for keyword, check in newer.items() if keyword in kind.VALIDATORS}
    return untyped.extend(kind, {keyword: count_check(check) for keyword, check in own.items()})


def _spend(steps: int) -> None:
    if next(islice(_STEPS.get(), steps - 1, None), None) is None:
        raise _TooManySteps


def _check_unevaluated(kind: str, validator: Any, option: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(value, kind):
        return
    rest = Evaluated(value).rest(validator, schema)
    if option is False and rest:
        left = {name: value[name] for name in rest} if is_object(value) else value
        yield ValidationError(f"not allowed: {', '.join(map(format_short_json, rest[:MAX_PROBLEMS]))}", instance=left)
    elif is_object(option):
        for step in rest:
            yield from validator.descend(value[step], option, path=step)


def _has_equal_items(items: list[Any]) -> bool:
    seen: set[str] = set()
    for item in items:
        text = write_canonical(item)
        _spend(1 + len(text) // WRITTEN_A_STEP)
        if text in seen:
            return True
        seen.add(text)
    return False


def write_canonical(value: Any) -> str:
    """A text that equal JSON values share: 1 and 1.0 do, 1 and true do not, and names may come in any order.

    A text, because Python salts the hashes of texts: no caller can choose values whose hashes are the same.
    """
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return hex(value)  # in decimals, a long number would take time that grows with its square
    if isinstance(value, float):
        return hex(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        written = (f"{write_canonical(name)}:{write_canonical(inner)}" for name, inner in pairs)
        return f"{{{','.join(sorted(written))}}}"
    return f"[{','.join(map(write_canonical, value))}]"


def _matches(pattern: Any, text: str) -> bool | None:
    """Whether a pattern is found in a text. None: it cannot be run. Raises TextTooLong."""
    started = thread_time()
    try:
        compiled = compile_pattern(pattern)
    except PatternProblem:
        compiled = None
    # A schema may have more patterns than are remembered: then each is compiled again for every value.
    steps = 1 + int((thread_time() - started) / SECONDS_A_STEP)
    if compiled is not None:
        steps += min(len(text), compiled.max_length) * compiled.size // MATCHED_A_STEP
    _spend(steps)
    return compiled.search(text) if compiled is not None else None


def _name_matches(pattern: Any, name: Any) -> bool | None:
    try:
        return _matches(pattern, name) if isinstance(name, str) else False
    except TextTooLong:
        raise _TooManySteps from None


def _is_multiple(value: Any, wanted: Any) -> bool:
    try:
        # Exact, and short: a float has an exponent of at most three digits.
        whole, part = (Fraction(each if isinstance(each, int) else str(each)) for each in (value, wanted))
    except ValueError:
        return False  # not finite
    return whole % part == 0


def _registry(schema: JsonSchema) -> tuple[Any, Any]:
    """A registry that knows no other document, and a resolver of references into this one."""
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012, specification_with

    specification: Any = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    resource: Any = Resource(contents=schema, specification=specification)
    registry: Any = Registry[Any]()
    return registry, registry.with_resource("", resource).resolver("")


def _lint(node: JsonSchema, wrong: _Wrong) -> None:
    most = node.get("maxItems")
    if node.get("uniqueItems") is True and not (isinstance(most, int) and most <= MAX_UNIQUE_ITEMS):
        raise wrong("uniqueItems compares every pair of items", f'add "maxItems": {MAX_UNIQUE_ITEMS} or less')
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        if not isinstance(node.get("maxLength"), int):
            raise wrong(f"pattern {pattern!r} without maxLength", 'add "maxLength"')
        _lint_pattern(pattern, wrong)
    for pattern in node.get("patternProperties", {}):
        _lint_pattern(pattern, wrong)


def _lint_pattern(pattern: str, wrong: _Wrong) -> None:
    if (problem := find_pattern_problem(pattern)) is not None:
        raise wrong(
            f"pattern {pattern[:200]!r} {problem.reason}",
            "write it without look-around and back-references, as JSON Schema has it (ECMAScript);"
            " or check the value in the function",
        )


def _resolve(node: JsonSchema, resolver: Any, wrong: _Wrong) -> None:
    from referencing.exceptions import Unresolvable

    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        ref = node.get(keyword)
        if ref is None:
            continue
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise wrong(f"{keyword} {ref!r} is not in this schema", "copy what it points to into $defs")
        try:
            resolver.lookup(ref)
        except (Unresolvable, ValueError):
            raise wrong(f"{keyword} {ref!r} points to nothing", "define it in $defs") from None


_PHRASES: dict[str, Callable[[Any], str]] = {
    "type": lambda wanted: f"expected {format_alternatives(as_list(wanted))}",
    "enum": lambda wanted: f"expected {format_alternatives(map(format_short_json, wanted))}",
    "const": lambda wanted: f"expected {format_short_json(wanted)}",
    "minimum": lambda wanted: f"must be at least {wanted}",
    "maximum": lambda wanted: f"must be at most {wanted}",
    "exclusiveMinimum": lambda wanted: f"must be greater than {wanted}",
    "exclusiveMaximum": lambda wanted: f"must be less than {wanted}",
    "multipleOf": lambda wanted: f"must be a multiple of {wanted}",
    "minLength": lambda wanted: f"must have at least {format_count(wanted, 'character')}",
    "maxLength": lambda wanted: f"must have at most {format_count(wanted, 'character')}",
    "minItems": lambda wanted: f"must have at least {format_count(wanted, 'item')}",
    "maxItems": lambda wanted: f"must have at most {format_count(wanted, 'item')}",
    "uniqueItems": lambda _: "must have no item twice",
    "minProperties": lambda wanted: f"must have at least {format_count(wanted, 'field')}",
    "maxProperties": lambda wanted: f"must have at most {format_count(wanted, 'field')}",
    "pattern": lambda wanted: f"must match the pattern {wanted}",
    "None": lambda _: "not allowed",  # by the schema `false`
}


def _to_problems(error: Any, schema: JsonSchema) -> list[Problem]:
    path: tuple[str | int, ...] = tuple(error.absolute_path)
    keyword, wanted, value = str(error.validator), error.validator_value, error.instance
    if keyword == "required" and is_object(value):
        return [Problem(format_value_path((*path, name)), "missing") for name in wanted if name not in value]
    if keyword in ("additionalProperties", "unevaluatedProperties") and is_object(value) and wanted is False:
        # The instance of such an error holds only what is left over.
        known = (
            list_field_names(schema, path) if keyword == "unevaluatedProperties" else error.schema.get("properties", {})
        )
        return [describe_unknown_argument(path, name, known) for name in islice(value, MAX_PROBLEMS)]
    got = describe_json_type(value) if is_secret_path(schema, path) else format_short_json(value)
    if keyword in ("anyOf", "oneOf") and error.context:
        return _of_union(error, schema, path, got)
    phrase = _PHRASES.get(keyword)
    if phrase is None:
        return [Problem(format_value_path(path), f"does not fit {keyword}, got {got}")]
    return [Problem(format_value_path(path), f"{phrase(wanted)}, got {got}")]


def _of_union(error: Any, schema: JsonSchema, path: tuple[str | int, ...], got: str) -> list[Problem]:
    """The errors of the one branch with the value's shape, or else all types that are allowed."""
    branches: dict[Any, list[Any]] = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    mismatched = {
        at: inner[0]
        for at, inner in branches.items()
        if len(inner) == 1 and inner[0].validator == "type" and tuple(inner[0].absolute_path) == path
    }
    shaped = [inner for at, inner in branches.items() if at not in mismatched]
    if len(shaped) == 1:
        return [problem for inner in shaped[0] for problem in _to_problems(inner, schema)]
    wanted = [format_alternatives(as_list(inner.validator_value)) for inner in mismatched.values()]
    if shaped or not wanted:
        return [Problem(format_value_path(path), f"fits none of the {len(branches)} forms allowed, got {got}")]
    return [Problem(format_value_path(path), f"expected {format_alternatives(wanted)}, got {got}")]


# -- `unevaluatedItems` and `unevaluatedProperties`, in time that grows with the value and not with its square.
#
# A schema has looked at an item or a name if one of its keywords applies to it, or one in a schema beside it (`allOf`,
# `$ref`, `if`, …) that the value fits. jsonschema looks each up in a list of those; here they are in a set.


_ADDED_A_STEP = 100


class Evaluated:
    """The indexes of an array, or the names of an object, that a schema has looked at."""

    def __init__(self, value: Any) -> None:
        self._value, self._has_all = value, False
        self._found: set[Any] = set()

    def rest(self, validator: Any, schema: Any) -> list[Any]:
        """What a schema leaves to its own `unevaluated…`."""
        self._visit(validator, schema, is_root=True)
        every: Iterable[Any] = range(len(self._value)) if is_array(self._value) else self._value
        return [] if self._has_all else [one for one in every if one not in self._found]

    def _visit(self, validator: Any, schema: Any, *, is_root: bool = False) -> None:
        _spend(1)
        if self._has_all or not is_object(schema):
            return
        for beside, inner in _resolve_reference(validator, schema):
            self._visit(beside, inner)
        if is_array(self._value):
            self._visit_items(validator, schema, is_root)
        else:
            self._visit_names(validator, schema, is_root)
        for inner in self._iter_matching_schemas(validator, schema):
            self._visit(validator, inner)

    def _iter_matching_schemas(self, validator: Any, schema: Any) -> Iterator[Any]:
        """The schemas beside it that the value fits."""
        for keyword in ("allOf", "oneOf", "anyOf"):
            yield from (inner for inner in schema.get(keyword, ()) if self._is_valid(validator, self._value, inner))
        if "if" in schema:
            is_met = self._is_valid(validator, self._value, schema["if"])
            yield from (schema[word] for word in (("if", "then") if is_met else ("else",)) if word in schema)
        if is_object(self._value):
            dependent: dict[str, Any] = schema.get("dependentSchemas", {})
            yield from (inner for name, inner in dependent.items() if name in self._value)

    def _visit_items(self, validator: Any, schema: Any, is_root: bool) -> None:
        items = schema.get("items")
        # Until 2019-09, a list under `items` was what `prefixItems` is now.
        is_prefix = is_array(items)
        prefix = items if is_array(items) else schema.get("prefixItems", ())
        others = schema.get("additionalItems") if is_prefix else items
        if others is not None or ("unevaluatedItems" in schema and not is_root):
            self._has_all = True
            return
        self._add(range(min(len(prefix), len(self._value))))
        if "contains" in schema and "prefixItems" in validator.VALIDATORS:
            wanted = schema["contains"]
            self._add(at for at, item in enumerate(self._value) if self._is_valid(validator, item, wanted))

    def _visit_names(self, validator: Any, schema: Any, is_root: bool) -> None:
        if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not is_root):
            self._has_all = True
            return
        self._add(schema.get("properties", {}).keys() & self._value.keys())
        for pattern in schema.get("patternProperties", ()):
            self._add(name for name in self._value if _name_matches(pattern, name) is not False)

    def _add(self, found: Iterable[Any]) -> None:
        before = len(self._found)
        self._found.update(found)
        _spend(1 + (len(self._found) - before) // _ADDED_A_STEP)

    def _is_valid(self, validator: Any, value: Any, schema: Any) -> bool:
        _spend(1)
        return next(validator.descend(value, schema), None) is None


def _resolve_reference(validator: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """What a schema refers to, each with a validator that knows the references in it."""
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword not in schema or keyword not in validator.VALIDATORS:
            continue
        if keyword == "$recursiveRef":
            from referencing.jsonschema import lookup_recursive_ref

            found: Any = lookup_recursive_ref(validator._resolver)
        else:
            found = validator._resolver.lookup(schema[keyword])
        yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
