"""Arguments described by an author's own JSON Schema, kept word for word and checked with jsonschema.

The schema must follow rules that keep checking cheap, whatever a peer sends: no remote references, no
quadratic `uniqueItems`, only patterns that a linear engine can run. Unions inside unions take steps that multiply, so
checking ends after a number of steps that grows with the arguments. A match counts as steps too.

jsonschema matches patterns with Python's `re`. Every validator here is one of `_bounded`, which does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from defserve.binding.arguments.compact import rebuilt, walk
from defserve.binding.arguments.patterns import PatternProblem, TextTooLong, compile_pattern, pattern_problem
from defserve.binding.arguments.secrets import is_secret
from defserve.binding.arguments.wording import alternatives, counted, did_you_mean, kind_of, shown, spell_path
from defserve.errors import BadArguments, Problem, UsageError
from defserve.wire.jsonvalue import JsonSchema, as_list, is_object

if TYPE_CHECKING:
    from defserve.binding.signature import Signature

MOST_UNIQUE = 500
MOST_PROBLEMS = 20
MOST_STEPS = 10_000
"""Keywords applied to values in one check, of some 30 µs each. `STEPS_A_VALUE` more for every value inside."""
STEPS_A_VALUE = 50
MATCHED_A_STEP = 500
"""Characters times positions of a pattern that are matched for one step."""
LONGEST_REMEMBERED = 4096
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class ExplicitArguments:
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
        otherwise: ExplicitArguments | None = None,
    ) -> None:
        """Raises UsageError for a schema that is wrong, or that a peer could abuse."""
        self.schema, self._names, self._otherwise = schema, names, otherwise

        def wrong(problem: str, fix: str) -> UsageError:
            return UsageError(f"{subject}: {problem}", where=where, fix=fix)

        self._made = _checked(schema, wrong)

    @classmethod
    def of_our_own(cls, schema: JsonSchema) -> ExplicitArguments:
        """A schema that this framework has written. It is checked at the first call: jsonschema takes 5 MB."""
        made = cls.__new__(cls)
        made.schema, made._names, made._otherwise, made._made = schema, None, None, None
        return made

    @classmethod
    def of(cls, signature: Signature, schema: JsonSchema) -> ExplicitArguments:
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
        for name in (name for name, needed in required.items() if needed):
            if name not in schema.get("required", ()):
                raise wrong(
                    f"parameter {name!r} has no default, but the schema does not require it",
                    f'add it to "required", or write {name}=None',
                )
        return made

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """The keyword arguments. Raises BadArguments with one problem for each field."""
        given = {} if given is None else given
        if not isinstance(given, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArguments((Problem("", f"arguments must be an object, got {shown(given)}"),))
        try:
            with _bounded_steps(given):
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
        return dict(given)

    @property
    def _validator(self) -> Any:
        if self._made is None:
            self._made = _checked(self.schema, lambda problem, fix: UsageError(problem, fix=fix))
        return self._made

    def _problems(self, given: dict[str, Any]) -> list[Problem]:
        problems: dict[Problem, None] = {}
        if self._names is not None:
            unknown = islice((name for name in given if name not in self._names), MOST_PROBLEMS)
            problems |= {Problem("", did_you_mean(name, self._names)): None for name in unknown}
        for error in self._validator.iter_errors(given):
            for problem in _said(error, self.schema):
                problems[problem] = None
            if len(problems) >= MOST_PROBLEMS:
                break
        return list(problems)[:MOST_PROBLEMS]


def fits(value: Any, schema: JsonSchema) -> bool:
    """Whether a value fits a schema. False as well if the schema cannot be used, or takes too many steps."""
    try:
        return not find_errors(value, schema, 1)
    except Exception:
        return False


def find_errors(value: Any, schema: JsonSchema, most: int, *, with_formats: bool = False) -> list[Any]:
    """The first errors of a value under a schema that anybody may have written.

    A pattern that cannot be run is not enforced. Raises whatever jsonschema raises for a schema that is none, and for
    a check that takes too many steps.
    """
    from jsonschema import Draft202012Validator as Draft

    registry, _ = _registry(schema)
    checker = Draft.FORMAT_CHECKER if with_formats else None
    validator = _bounded(Draft)(_enforceable(schema), registry=registry, format_checker=checker)
    with _bounded_steps(value):
        return list(islice(validator.iter_errors(value), most))


def _enforceable(schema: JsonSchema) -> JsonSchema:
    """Without `unevaluatedProperties` beside `patternProperties`: jsonschema would match those with `re`."""
    if not _mixes_unevaluated(schema):
        return schema

    def change(inner: JsonSchema) -> JsonSchema:
        made = rebuilt(inner, change)
        made.pop("unevaluatedProperties", None)
        return made

    return change(schema)


def _mixes_unevaluated(schema: JsonSchema) -> bool:
    words = {word for node in walk(schema) for word in ("patternProperties", "unevaluatedProperties") if word in node}
    return len(words) == 2


class _TooManySteps(Exception):
    """Checking would take too long."""


_STEPS: ContextVar[Iterator[int]] = ContextVar("steps")


@contextmanager
def _bounded_steps(value: Any) -> Generator[None]:
    """Inside, checks end with _TooManySteps after as many steps as this value may take."""
    token = _STEPS.set(iter(range(MOST_STEPS + STEPS_A_VALUE * _values_in(value))))
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


class _Written:
    """A schema, equal to any other that is written alike."""

    __slots__ = ("schema", "wrong", "text")

    def __init__(self, schema: Any, wrong: _Wrong) -> None:
        self.schema, self.wrong, self.text = schema, wrong, repr(schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Written) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _checked(schema: Any, wrong: _Wrong) -> Any:
    """The validator for a schema. Checking takes some 10 ms, so that of a short schema is remembered."""
    try:
        written = _Written(schema, wrong)
        return (_validator if len(written.text) > LONGEST_REMEMBERED else _known_validator)(written)
    except RecursionError:
        raise wrong("it is nested too deeply", "flatten it") from None


@lru_cache(maxsize=64)
def _known_validator(written: _Written) -> Any:
    # Of a copy: the author may change theirs.
    return _validator(_Written(deepcopy(written.schema), written.wrong))


def _validator(written: _Written) -> Any:
    import jsonschema
    from jsonschema.validators import validator_for

    schema, wrong = written.schema, written.wrong
    if not is_object(schema) or schema.get("type") != "object":
        raise wrong('its root must be {"type": "object"}', 'write "type": "object" at the root')
    dialect: Any = schema.get("$schema", _DIALECT)
    unknown: Any = None
    kind: Any = validator_for({"$schema": dialect}, default=unknown)
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
    for node in walk(schema):
        _lint(node, wrong)
        _resolve(node, resolver, wrong)
    return _bounded(kind)(schema, registry=registry)


@cache
def _bounded(kind: Any) -> Any:
    """A validator whose steps are counted, and whose patterns are matched in linear time.

    It keeps only a few errors of each branch of a union: jsonschema would keep them all. It compares decimals as they
    are written: to jsonschema, 19.99 is no multiple of 0.01.
    """
    import jsonschema
    from jsonschema import validators

    untyped: Any = validators

    def failed(validator: Any, options: Any, value: Any) -> Iterator[list[Any]]:
        for position, option in enumerate(options):
            yield list(islice(validator.descend(value, option, schema_path=position), MOST_PROBLEMS))

    def any_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[Any]:
        errors: list[Any] = []
        for branch in failed(validator, options, value):
            if not branch:
                return
            errors += branch
        yield jsonschema.ValidationError("fits no form", context=errors)

    def one_of(validator: Any, options: Any, value: Any, _: Any) -> Iterator[Any]:
        branches = list(failed(validator, options, value))
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
                yield jsonschema.ValidationError(f"{shown(value)} does not match {wanted!r}")
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
            yield jsonschema.ValidationError(f"unknown fields: {', '.join(map(shown, extras[:MOST_PROBLEMS]))}")

    def counted_check(check: Any) -> Any:
        def checked(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
            _spend(1)
            return check(validator, wanted, value, schema)

        return checked

    own: dict[str, Any] = {
        **kind.VALIDATORS,
        "anyOf": any_of,
        "oneOf": one_of,
        "multipleOf": multiple_of,
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
    return untyped.extend(kind, {keyword: counted_check(check) for keyword, check in own.items()})


def _spend(steps: int) -> None:
    if next(islice(_STEPS.get(), steps - 1, None), None) is None:
        raise _TooManySteps


def _matches(pattern: Any, text: str) -> bool | None:
    """Whether a pattern is found in a text. None: it cannot be run. Raises TextTooLong."""
    try:
        compiled = compile_pattern(pattern)
    except PatternProblem:
        return None
    _spend(1 + min(len(text), compiled.max_length) * compiled.size // MATCHED_A_STEP)
    return compiled.search(text)


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
    if node.get("uniqueItems") is True and not (isinstance(most, int) and most <= MOST_UNIQUE):
        raise wrong("uniqueItems compares every pair of items", f'add "maxItems": {MOST_UNIQUE} or less')
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        if not isinstance(node.get("maxLength"), int):
            raise wrong(f"pattern {pattern!r} without maxLength", 'add "maxLength"')
        _lint_pattern(pattern, wrong)
    for pattern in node.get("patternProperties", {}):
        _lint_pattern(pattern, wrong)


def _lint_pattern(pattern: str, wrong: _Wrong) -> None:
    if (problem := pattern_problem(pattern)) is not None:
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
    "type": lambda wanted: f"expected {alternatives(as_list(wanted))}",
    "enum": lambda wanted: f"expected {alternatives(map(shown, wanted))}",
    "const": lambda wanted: f"expected {shown(wanted)}",
    "minimum": lambda wanted: f"must be at least {wanted}",
    "maximum": lambda wanted: f"must be at most {wanted}",
    "exclusiveMinimum": lambda wanted: f"must be greater than {wanted}",
    "exclusiveMaximum": lambda wanted: f"must be less than {wanted}",
    "multipleOf": lambda wanted: f"must be a multiple of {wanted}",
    "minLength": lambda wanted: f"must have at least {counted(wanted, 'character')}",
    "maxLength": lambda wanted: f"must have at most {counted(wanted, 'character')}",
    "minItems": lambda wanted: f"must have at least {counted(wanted, 'item')}",
    "maxItems": lambda wanted: f"must have at most {counted(wanted, 'item')}",
    "uniqueItems": lambda _: "must have no item twice",
    "minProperties": lambda wanted: f"must have at least {counted(wanted, 'field')}",
    "maxProperties": lambda wanted: f"must have at most {counted(wanted, 'field')}",
    "pattern": lambda wanted: f"must match the pattern {wanted}",
}


def _said(error: Any, schema: JsonSchema) -> list[Problem]:
    path: tuple[str | int, ...] = tuple(error.absolute_path)
    keyword, wanted, value = str(error.validator), error.validator_value, error.instance
    if keyword == "required" and is_object(value):
        return [Problem(spell_path((*path, name)), "missing") for name in wanted if name not in value]
    if keyword in ("additionalProperties", "unevaluatedProperties") and is_object(value) and wanted is False:
        known = error.schema.get("properties", {})
        unknown = list(islice((name for name in value if name not in known), MOST_PROBLEMS))
        if not path:
            return [Problem("", did_you_mean(name, known)) for name in unknown]
        return [Problem(spell_path((*path, name)), "unknown field") for name in unknown]
    got = kind_of(value) if is_secret(schema, path) else shown(value)
    if keyword in ("anyOf", "oneOf") and error.context:
        return _of_union(error, schema, path, got)
    phrase = _PHRASES.get(keyword)
    if phrase is None:
        return [Problem(spell_path(path), f"does not fit {keyword}, got {got}")]
    return [Problem(spell_path(path), f"{phrase(wanted)}, got {got}")]


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
        return [problem for inner in shaped[0] for problem in _said(inner, schema)]
    wanted = [alternatives(as_list(inner.validator_value)) for inner in mismatched.values()]
    if shaped or not wanted:
        return [Problem(spell_path(path), f"fits none of the {len(branches)} forms allowed, got {got}")]
    return [Problem(spell_path(path), f"expected {alternatives(wanted)}, got {got}")]
