"""A function's arguments: the JSON Schema of its parameters, and the validation of what a peer sends.

`validate` gives keyword arguments, or raises BadArguments with a line for each field, worded for a model. Mode is lax,
and unknown names are refused. Plain scalars are checked without importing pydantic (`core_schemas.py`), because that
import would be most of the start-up time; `models.py`, `patterns.py` and `problems.py` are imported when needed.
"""

from __future__ import annotations

import collections.abc as abc
from functools import cached_property, lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Optional, get_args, get_origin

import pydantic_core
from pydantic_core import SchemaError, SchemaSerializer, SchemaValidator, ValidationError, core_schema
from pydantic_core.core_schema import CoreSchema

from defserve.binding import core_schemas
from defserve.binding.core_schemas import (
    is_strict_about_json,
    iter_schema_patterns,
    make_bounded_argument_schema,
    make_bounded_argument_validator,
    make_bounded_schema,
    make_fail_fast_schema,
    make_fail_fast_validator,
    takes_infinity,
)
from defserve.binding.json_schemas import (
    compact_schema,
    find_json_types,
    make_object_schema,
    make_portable_schema,
    narrow_schema_to_dialect,
    walk_schema,
)
from defserve.binding.signature import can_be_none, format_annotation, get_value_class
from defserve.core.json_values import JsonSchema, find_infinity, find_limit_violation, is_array, is_object
from defserve.errors import BadArguments, Problem, UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from defserve.binding.signature import Parameter, Signature


_SCALARS = (str, int, bool, NoneType)
_JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_CONTAINERS = {"array", "object"}

# JSON text in a string has the same limits as a message.
_DEPTH, _KEYS = 64, 10_000

# Of arguments with more values than this only the first problem is reported.
_FULLY_REPORTED = 2_000


class AnnotationSchemas:
    """One annotation's schemas, shared by every function that uses it.

    `json` describes what is accepted, `output` what is produced; both may have `$defs`. The compact forms are
    made once: many functions share a model, and compacting its schema for each would slow down a long list.
    """

    def __init__(self, core: CoreSchema, json: JsonSchema | None, adapter: TypeAdapter[Any] | None = None) -> None:
        self.core, self._adapter = core, adapter
        self._has_checked_patterns = False
        if json is not None:
            self.json = self.output = json

    @property
    def is_made_by_pydantic(self) -> bool:
        return self._adapter is not None

    def check_patterns(self) -> None:
        """As `check_core_schema_patterns`, but once for all functions that use this annotation."""
        if not self._has_checked_patterns:
            check_core_schema_patterns(self.core)
            self._has_checked_patterns = True

    @cached_property
    def json(self) -> JsonSchema:
        return self._describe_schema("validation")

    @cached_property
    def output(self) -> JsonSchema:
        return self._describe_schema("serialization")

    @cached_property
    def has_extension_keywords(self) -> bool:
        """Whether an author has put keywords into the schema that JSON Schema does not have: `x-…`."""
        if self._adapter is None:
            return False
        return any(name.startswith("x-") for schema in walk_schema(self.json) for name in schema)

    @cached_property
    def compact(self) -> JsonSchema:
        return compact_schema(self.json)

    @cached_property
    def compact_output(self) -> JsonSchema:
        return compact_schema(self.output)

    @cached_property
    def portable(self) -> JsonSchema:
        """What is published of `json`. What is built by hand is portable as it is."""
        return self.json if self._adapter is None else make_portable_schema(self.json)

    @cached_property
    def portable_output(self) -> JsonSchema:
        return self.output if self._adapter is None else make_portable_schema(self.output)

    @cached_property
    def fail_fast_schema(self) -> CoreSchema:
        """As `core`, but sequences and mappings stop at their first bad item."""
        if (made := self._adapter) is None:
            return make_fail_fast_schema(self.core)
        return _call_validator(make_fail_fast_validator(made), made)

    @property
    def all_errors_schema(self) -> CoreSchema:
        """As `fail_fast_schema`, but every error is collected. Made when first needed, to say all that is wrong."""
        if (made := self._adapter) is None:
            return make_bounded_argument_schema(self.core)
        return _call_validator(make_bounded_argument_validator(made), made)

    def _describe_schema(self, mode: Any) -> JsonSchema:
        from defserve.binding.models import make_json_schema

        assert self._adapter is not None
        return make_json_schema(self._adapter, mode)

    @cached_property
    def validator(self) -> SchemaValidator:
        made: Any = self._adapter
        return SchemaValidator(self.core) if made is None else made.validator

    @cached_property
    def serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self.core) if self._adapter is None else self._adapter.serializer


def require_annotation_schemas(annotation: Any, *, where: str = "", subject: str = "") -> AnnotationSchemas:
    """The schemas of an annotation. `where` and `subject` say whose it is, for the UsageError."""
    try:
        return get_annotation_schemas(annotation)
    except Exception as error:
        raise make_annotation_error(annotation, error, where=where, subject=subject) from error


def get_annotation_schemas(annotation: Any) -> AnnotationSchemas:
    """As `require_annotation_schemas`, but raises whatever pydantic raises."""
    try:
        hash(annotation)
    except TypeError:
        return _make_fragment(annotation)
    # `bool | int` equals `int | bool`, but of two members that fit a text, the first is taken.
    return _make_cached_fragment(annotation, tuple(_list_parts(annotation)))


def _list_parts(annotation: Any) -> list[Any]:
    """What an annotation is made of, in the order in which it is written."""
    parts: Any = annotation if is_array(annotation) else get_args(annotation) or None
    return [annotation] if parts is None else [part for each in parts for part in _list_parts(each)]


def make_annotation_error(annotation: Any, error: Exception, *, where: str, subject: str) -> UsageError:
    """The complaint about an annotation pydantic cannot describe."""
    if isinstance(error, SchemaError):
        from defserve.binding.patterns import explain_pydantic_pattern_error

        if (found := explain_pydantic_pattern_error(str(error))) is not None:
            return UsageError(f"{subject or 'annotation'}: {found[0]}", where=where, fix=found[1])
        reason = str(error).rstrip().rpartition("\n")[2].strip().partition(": ")[2]
        return UsageError(
            f"{subject or 'annotation'}: {format_annotation(annotation)} cannot be checked ({reason})",
            where=where,
            fix="correct the bound",
        )
    if isinstance(error, UnusablePattern):
        return UsageError(f"{subject or 'annotation'}: {error.problem}", where=where, fix=error.fix)
    reason = str(error).partition("\n")[0].partition(". Set ")[0].rstrip(".")
    if isinstance(error, ImportError):
        reason, _, fix = reason.partition(", ")
        return UsageError(f"{subject or 'annotation'}: {format_annotation(annotation)}: {reason}", where=where, fix=fix)
    return UsageError(
        f"{subject or 'annotation'}: {format_annotation(annotation)} has no JSON form ({reason})",
        where=where,
        fix="use scalars, containers, a dataclass, TypedDict or pydantic model,"
        " or give the class __get_pydantic_core_schema__;"
        " for a value that callers do not send, write Annotated[…, Depends(function)]",
    )


class UnusablePattern(Exception):
    """A pattern in an annotation that a caller's text must not meet."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


def _make_fragment(annotation: Any) -> AnnotationSchemas:
    if (built := core_schemas.build_scalar_schemas(annotation)) is not None:
        core, json = built
        return AnnotationSchemas(make_bounded_schema(core), json)
    from defserve.binding.models import make_type_adapter

    made = make_type_adapter(_concrete(annotation))
    return AnnotationSchemas(made.core_schema, None, made)


def _call_validator(validator: Any, adapter: TypeAdapter[Any]) -> CoreSchema:
    """A schema that calls pydantic's validator of an annotation.

    Its schema is not copied: definitions shared by two parameters would clash in one schema ("Duplicate ref"), and each
    would be built again for every tool.
    """
    is_strict = is_strict_about_json(adapter.core_schema)
    return core_schema.no_info_plain_validator_function(
        _make_json_validator(validator) if is_strict else validator.validate_python
    )


def _make_json_validator(validator: Any) -> abc.Callable[[Any], Any]:
    """Validates a decoded value as JSON. In Python, a strict type takes no text for a date and no list for a tuple."""
    from json import dumps

    def validate(value: Any) -> Any:
        try:
            text = dumps(value)
        except TypeError:
            return validator.validate_python(value)  # no peer sent it: a transform sets it
        return validator.validate_json(text)

    return validate


def _concrete(annotation: Any) -> Any:
    """A list for what pydantic would check later, or does not know."""
    if get_origin(annotation) in (abc.Iterable, abc.Collection):
        return list[get_args(annotation)]  # type: ignore[misc]
    return annotation


@lru_cache(maxsize=4096)
def _make_cached_fragment(annotation: Any, parts: tuple[Any, ...]) -> AnnotationSchemas:
    return _make_fragment(annotation)


_Validate = abc.Callable[[Any], dict[str, Any]]


class ArgumentsSchema:
    """The arguments of one function: their JSON Schema, and their validation."""

    __slots__ = ("_parameters", "_fragments", "_schema", "_published", "_validate", "_validate_all")

    def __init__(self, parameters: tuple[Parameter, ...], fragments: tuple[AnnotationSchemas, ...]) -> None:
        self._parameters = parameters
        self._fragments = fragments
        self._schema: JsonSchema | None = None
        self._published: JsonSchema | None = None
        # The first stops at a bad item; the second, made when first needed, collects every error.
        self._validate: _Validate | None = None
        self._validate_all: _Validate | None = None

    @property
    def may_annotate(self) -> bool:
        """Whether an author has put keywords of their own into the schema."""
        return any(made.has_extension_keywords for made in self._fragments)

    @classmethod
    def from_signature(cls, signature: Signature) -> ArgumentsSchema:
        """Raises UsageError for a parameter whose type has no JSON form."""
        seen: set[str] = set()
        for parameter in signature.parameters:
            if parameter.wire_name in seen:
                raise UsageError(
                    f"{signature.name}: {parameter.wire_name!r} is the name of two parameters",
                    where=signature.where,
                    fix="choose another alias",
                )
            seen.add(parameter.wire_name)
        return cls(signature.parameters, tuple(_fragment_of(one, signature) for one in signature.parameters))

    @property
    def schema(self) -> JsonSchema:
        """The exact and compact JSON Schema. It is shared: do not change it."""
        if self._schema is None:
            # Two parameters may share definitions; a single one cannot.
            alone = sum("$defs" in made.json for made in self._fragments) < 2
            self._schema = self._make_schema([made.compact if alone else made.json for made in self._fragments])
        return self._schema

    def publish_schema(self, dialect: str | None = None) -> JsonSchema:
        """The schema as clients see it: portable, or in a narrower dialect. It is shared, as the exact one is."""
        if self._published is None:
            is_exact = all(made.portable is made.json for made in self._fragments)
            self._published = (
                self.schema if is_exact else self._make_schema([made.portable for made in self._fragments])
            )
        return self._published if dialect is None else narrow_schema_to_dialect(self._published, dialect)

    def _make_schema(self, schemas: list[JsonSchema]) -> JsonSchema:
        properties = {
            parameter.wire_name: _property(parameter, made, schema)
            for parameter, made, schema in zip(self._parameters, self._fragments, schemas, strict=True)
        }
        return make_object_schema(properties, [one.wire_name for one in self._parameters if one.required])

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """The keyword arguments for the function. A parameter that is left out gets the function's own default.

        Raises BadArguments with one problem for each field.
        """
        validate = self._validate or self._build()
        try:
            try:
                return validate({} if given is None else given)
            except ValidationError as error:
                return self._second_look({} if given is None else given, error)
        except (OverflowError, RecursionError, UnicodeError) as error:
            raise BadArguments((Problem("", f"arguments cannot be read: {error}"),)) from None

    def _build(self) -> _Validate:
        validate = self._validate = self._validator([made.fail_fast_schema for made in self._fragments])
        # Floats refuse infinities themselves. Where any value is taken, somebody has to look.
        pairs = zip(self._parameters, self._fragments, strict=True)
        if names := [one.wire_name for one, made in pairs if takes_infinity(made.core)]:

            def validate_finite(given: dict[str, Any]) -> dict[str, Any]:
                kwargs = validate(given)
                for name in names:
                    refuse_infinity(given.get(name), name)
                return kwargs

            self._validate = validate_finite
        return self._validate

    def _validator(self, cores: list[CoreSchema]) -> _Validate:
        fields = {
            parameter.name: _field(parameter, core) for parameter, core in zip(self._parameters, cores, strict=True)
        }
        # JSON has no infinities, so a string that spells one is not a number.
        config = core_schema.CoreConfig(allow_inf_nan=False)
        schema = core_schema.typed_dict_schema(fields, extra_behavior="forbid", config=config)
        return SchemaValidator(schema).validate_python

    def _second_look(self, given: Any, error: ValidationError) -> dict[str, Any]:
        """Try again with JSON strings decoded where a container is wanted; if that fails too, raise what is wrong."""
        assert self._validate is not None
        decoded = self._decode_json_strings(given) if is_object(given) else None
        if decoded is not None:
            given = decoded
            try:
                return self._validate(given)
            except ValidationError as second:
                error = second
        from defserve.binding.problems import MORE_PROBLEMS, explain_validation_error

        if holds_more_than(given, _FULLY_REPORTED):
            raise BadArguments((*explain_validation_error(error, given, self.schema), MORE_PROBLEMS)) from None
        try:
            self._validate_all = self._validate_all or self._validator(
                [made.all_errors_schema for made in self._fragments]
            )
            return self._validate_all(given)
        except ValidationError as full:
            raise BadArguments(explain_validation_error(full, given, self.schema)) from None

    def _decode_json_strings(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """Raises BadArguments for JSON text that is past the limits of a message."""
        found: dict[str, Any] = {}
        for parameter, made in zip(self._parameters, self._fragments, strict=True):
            value = given.get(parameter.wire_name)
            if isinstance(value, str) and value.strip()[:1] in ("[", "{") and _wants_container(made.json):
                try:
                    decoded = pydantic_core.from_json(value, allow_inf_nan=False)
                except ValueError:
                    continue
                if reason := find_limit_violation(decoded, _DEPTH, _KEYS):
                    raise BadArguments((Problem(parameter.wire_name, f"the JSON in this string: {reason}"),))
                found[parameter.wire_name] = decoded
        return {**given, **found} if found else None


def _fragment_of(parameter: Parameter, signature: Signature) -> AnnotationSchemas:
    annotation = parameter.annotation
    if parameter.default is None and not can_be_none(annotation):
        # `x: str = None` means `x: str | None = None`, although PEP 484 forbids it.
        annotation = Optional[annotation]  # noqa: UP045
    try:
        made = get_annotation_schemas(annotation)
        made.check_patterns()
        # Made here, so that a type without a JSON Schema fails at registration, not at the first listing.
        assert made.json is not None
    except Exception as error:
        subject = f"{signature.name}: parameter {parameter.name!r}"
        raise make_annotation_error(parameter.annotation, error, where=signature.where, subject=subject) from error
    if not _is_valid_default(parameter.default, made):
        raise UsageError(
            f"{signature.name}: parameter {parameter.name!r}: its default {parameter.default!r}"
            f" is not {format_annotation(parameter.annotation)}",
            where=signature.where,
            fix="change the default, or the annotation",
        )
    return made


def check_core_schema_patterns(core: CoreSchema) -> None:
    """Raises UnusablePattern if a caller's text would meet Python's engine, or a pattern that is too large."""
    for pattern, engine in iter_schema_patterns(core):
        from defserve.binding.patterns import find_annotation_pattern_problem

        if (found := find_annotation_pattern_problem(pattern, engine)) is not None:
            raise UnusablePattern(*found)


def _is_valid_default(default: Any, made: AnnotationSchemas) -> bool:
    """Whether a caller could send the default. Checked for scalars only, to keep start-up fast."""
    kind = _JSON_TYPES.get(get_value_class(default))
    wanted = made.json.get("type")
    if kind is None or made.is_made_by_pydantic or wanted in _CONTAINERS or made.json == {"type": kind}:
        return True
    try:
        made.validator.validate_python(default)
    except ValidationError:
        return False
    return True


def _field(parameter: Parameter, core: CoreSchema) -> core_schema.TypedDictField:
    alias = parameter.wire_name if parameter.wire_name != parameter.name else None
    if parameter.fills:
        if parameter.default_factory is not None:
            factory, takes_data = parameter.default_factory, parameter.factory_takes_data
            core = core_schema.with_default_schema(core, default_factory=factory, default_factory_takes_data=takes_data)
        else:
            core = core_schema.with_default_schema(core, default=parameter.default)
    return core_schema.typed_dict_field(core, required=parameter.required, validation_alias=alias)


def _property(parameter: Parameter, made: AnnotationSchemas, schema: JsonSchema) -> JsonSchema:
    if description := parameter.description:
        schema = schema | {"description": description}
    if parameter.required or parameter.default_factory is not None:
        return schema
    if type(parameter.default) in _SCALARS and not made.is_made_by_pydantic:
        return schema | {"default": parameter.default}
    if parameter.default is not None and made.is_made_by_pydantic:
        from defserve.binding.problems import is_secret_path

        if is_secret_path(schema, ()):
            return schema
    made_schema = schema | _default(parameter.default)
    if made.is_made_by_pydantic and "format" in made_schema:
        from defserve.binding.models import has_valid_default

        if not has_valid_default(made_schema):
            del made_schema["format"]
    return made_schema


def _default(value: Any) -> JsonSchema:
    """`default`, unless the value has no JSON."""
    try:
        plain = pydantic_core.to_jsonable_python(value, by_alias=True)
        written = pydantic_core.to_json(plain, inf_nan_mode="constants")
        pydantic_core.from_json(written, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return {}
    return {"default": plain}


def refuse_infinity(value: Any, *outer: str) -> None:
    """Raises BadArguments for a number that became an infinity, wherever it is in the value: JSON cannot send it on."""
    if (path := find_infinity(value)) is not None:
        from defserve.binding.problems import format_value_path

        raise BadArguments((Problem(format_value_path((*outer, *path)), "the number is too large"),))


def _wants_container(schema: JsonSchema) -> bool:
    """Whether an array or object is accepted, and a string is not."""
    kinds = find_json_types(schema)
    return bool(kinds & _CONTAINERS) and kinds.isdisjoint(("string", "any"))


# -- Whether a decoded JSON value is large. It stops counting as soon as the answer is known.


def holds_more_than(value: Any, most: int) -> bool:
    """Whether a value holds more than `most` values, itself and containers included."""
    count = 1
    ahead: list[Any] = [value]
    while ahead:
        container = ahead.pop()
        if is_object(container) or is_array(container):
            count += len(container)
            if count > most:
                return True
            ahead += container.values() if is_object(container) else container
    return False
