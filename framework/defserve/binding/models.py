"""Schemas made by pydantic, for every annotation that is not built by hand. Imported only when needed."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Sequence
from enum import Flag
from math import isinf
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Union, get_args, get_origin

import typing_extensions
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

SchemaMode = Literal["validation", "serialization"]


def make_type_adapter(annotation: Any) -> TypeAdapter[Any]:
    """A complete TypeAdapter; raises whatever pydantic raises for the annotation."""
    if sys.version_info < (3, 12):
        annotation = modern(annotation)
    made: TypeAdapter[Any] = TypeAdapter(annotation)
    if not made.pydantic_complete:
        made.rebuild(raise_errors=True)
    return made


def make_json_schema(made: TypeAdapter[Any], mode: SchemaMode) -> dict[str, Any]:
    """The JSON Schema. Every model is in `$defs`, even one used once or at the root."""
    schemas, shared = TypeAdapter.json_schemas([("", mode, made)], schema_generator=TitlelessSchemaGenerator)
    return {**schemas["", mode], **shared}


class TitlelessSchemaGenerator(GenerateJsonSchema):
    """JSON Schema without generated titles and without OpenAPI keywords. The author's own titles stay."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",
        "skipped-discriminator",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    # What is published with a format fits it, as RFC 3339 and 3986 have it: official clients check. The values stay as
    # the author made them, so a type that has others is published without.

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        return _formatless(super().datetime_schema(schema), unless=self._has_offset(schema))

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _formatless(super().time_schema(schema), unless=self._has_offset(schema))

    def _has_offset(self, schema: core_schema.DatetimeSchema | core_schema.TimeSchema) -> bool:
        zone = schema.get("tz_constraint")
        # Anybody's time fits an input, unless it must not have an offset. An output needs one.
        return zone == "aware" or isinstance(zone, int) or (zone is None and self.mode == "validation")

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        # A duration of RFC 3339 is neither negative nor has it fractions.
        return _formatless(super().timedelta_schema(schema), unless=self.mode == "validation")

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        # `|` and `[` stay in a URL, but are not in a URI of RFC 3986.
        return _formatless(super().url_schema(schema), unless=self.mode == "validation")

    def multi_host_url_schema(self, schema: core_schema.MultiHostUrlSchema) -> JsonSchemaValue:
        return _formatless(super().multi_host_url_schema(schema), unless=self.mode == "validation")

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        made = super().generate_inner(schema)
        # An address may have a scope, and a pattern of Python is none of JavaScript.
        if self.mode == "serialization" and schema.get("type") in ("lax-or-strict", "function-plain"):
            return _formatless(made, unless=made.get("format") not in ("ipv6", "regex"))
        return made

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        # JSON has no infinity, and all that it has is within such a bound.
        made = super().float_schema(schema)
        return {name: value for name, value in made.items() if not (isinstance(value, float) and isinf(value))}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        return _formatless(made, unless=has_valid_default(made))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _drop_title(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _drop_title(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _drop_title(super().typed_dict_schema(schema), schema)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        if not schema["members"]:
            raise ValueError(f"the enum {schema['cls'].__name__} has no members")
        # A member with two names is listed twice.
        members = list({id(member): member for member in schema["members"]}.values())
        made = _drop_title(super().enum_schema({**schema, "members": members}), schema)
        if issubclass(schema["cls"], Flag):
            del made["enum"]  # flags may be combined
            if self.mode == "validation":
                names = ", ".join(f"{member.value} = {member.name}" for member in members)
                made["description"] = "\n".join(filter(None, (made.get("description"), f"A sum of {names}")))
        return made

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """Nothing is known of an author's serializer that does not say what it returns."""
        made = super().ser_schema(schema)
        if made is None and (function := schema.get("function")) is not None:
            module: str = getattr(function, "__module__", None) or ""
            # Those of pydantic and of ours write what the JSON Schema of their type says.
            return None if module.partition(".")[0] in ("pydantic", "defserve") else {}
        return made

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        if (ref := made.get("propertyNames", {}).get("$ref")) is not None:
            keys = self.get_schema_from_definitions(JsonRef(ref)) or {}
            if keys.get("type") != "string":
                made.pop("propertyNames")
                made |= _text_keys(keys.get("enum", ()))
        return made

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        made = super().tagged_union_schema(schema)
        made.pop("discriminator", None)
        return made


_OFFSET: Final = r"(?:[Zz]|[+-]\d\d:\d\d)"
_FORMATS: Final = {
    "date-time": re.compile(rf"\d{{4}}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?{_OFFSET}"),
    "time": re.compile(rf"\d\d:\d\d:\d\d(?:\.\d+)?{_OFFSET}"),
    "duration": re.compile(r"P(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?"),
}


def has_valid_default(schema: JsonSchemaValue) -> bool:
    """Whether the default of a schema fits its format."""
    known, default = _FORMATS.get(str(schema.get("format"))), schema.get("default")
    return known is None or not isinstance(default, str) or known.fullmatch(default) is not None


def _formatless(made: JsonSchemaValue, *, unless: bool) -> JsonSchemaValue:
    return made if unless else {name: value for name, value in made.items() if name != "format"}


def _text_keys(values: Sequence[Any]) -> JsonSchemaValue:
    """`propertyNames` for keys of other types, which are texts in JSON; empty if there is no list of them."""
    names = [str(value) for value in values if type(value) in (str, int)]
    return {"propertyNames": {"enum": names}} if names and len(names) == len(values) else {}


def _drop_title(made: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
    kind = schema.get("cls")
    config: Any = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
    if kind is not None and made.get("title") == kind.__name__ and not config.get("title"):
        del made["title"]
    return made


# -- `typing.TypedDict` on Python 3.11 rebuilt with typing_extensions, because pydantic refuses the former there.


def modern(annotation: Any, made: dict[Any, Any] | None = None) -> Any:
    """The annotation with every old TypedDict replaced. A recursive one stays, and pydantic refuses it."""
    made = {} if made is None else made
    if typing.is_typeddict(annotation):
        return _rebuilt(annotation, made) if type(annotation).__module__ == "typing" else annotation
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None or not args:
        return annotation
    if origin is Annotated:
        return Annotated[(modern(annotation.__origin__, made), *annotation.__metadata__)]  # type: ignore[return-value]
    changed = tuple(modern(arg, made) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    if origin in (Union, UnionType):
        return Union[changed]  # type: ignore[return-value]  # noqa: UP007
    if isinstance(annotation, GenericAlias):
        return origin[changed]
    return annotation.copy_with(changed)


def _rebuilt(old: Any, made: dict[Any, Any]) -> Any:
    if old in made:
        return made[old]
    made[old] = old
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(old, include_extras=True).items():
        hint, said = _split_qualifier(hint)
        # Python read no qualifier in an annotation that was still a text.
        optional = said is typing.NotRequired if said is not None else name in old.__optional_keys__
        fields[name] = (typing.NotRequired if optional else typing.Required)[modern(hint, made)]
    new: Any = typing_extensions.TypedDict(old.__name__, fields)  # type: ignore[misc]
    new.__module__, new.__qualname__, new.__doc__ = old.__module__, old.__qualname__, old.__doc__
    if (config := getattr(old, "__pydantic_config__", None)) is not None:
        new.__pydantic_config__ = config
    made[old] = new
    return new


def _split_qualifier(hint: Any) -> tuple[Any, Any]:
    """A field's type without `Required` or `NotRequired`, and which of the two it had. `Annotated` may be around it."""
    origin = get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return _split_qualifier(get_args(hint)[0])[0], origin
    if origin is Annotated:
        inner, said = _split_qualifier(hint.__origin__)
        return (Annotated[(inner, *hint.__metadata__)] if said is not None else hint), said  # type: ignore[return-value]
    return hint, None
