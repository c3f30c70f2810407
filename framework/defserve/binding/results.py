"""What a function returns, as content parts and structured content, by rules fixed at registration.

How it works: `ResultPacker` chooses a packer for a function once, from its return annotation. A call only runs it.
"""

from __future__ import annotations

import collections.abc as abc
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from inspect import Parameter
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, TypeAlias, cast, get_args, get_origin

import pydantic_core
from pydantic_core import PydanticSerializationError, ValidationError

from defserve.binding.arguments import AnnotationSchemas, get_annotation_schemas, make_annotation_error
from defserve.binding.content import Audio, ContentPart, Embedded, File, Image, Link, Text, ToolResult
from defserve.binding.core_schemas import ABSTRACT_TO_CONCRETE_TYPES
from defserve.binding.json_schemas import (
    find_json_types,
    move_combiners_to_description,
    narrow_schema_to_dialect,
    walk_graph,
    walk_schema,
)
from defserve.binding.signature import format_annotation, list_union_members, split_annotated
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object, replace_surrogates
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.binding.signature import Signature


StructuredOption: TypeAlias = bool | Literal["bare"] | None
"""Whether a result has structured content: yes, no, yes but never wrapped, or by its type (None)."""

WRAPPED_RESULT_KEY: Final = "result"


class ResultPacker:
    """How one function's results are packed.

    `pack` makes the result of a returned value (of a generator: of one yielded value) and raises TypeError when it
    does not fit the annotation. `join` makes the result of all the values a generator yielded. `wraps`: the declared
    type is not an object, so its structured content is wrapped.
    """

    __slots__ = ("pack", "wraps", "_fragment", "_is_scalar", "_streams", "_output", "_published")

    def __init__(self, pack: Pack, fragment: AnnotationSchemas | None = None, *, scalar: bool = False) -> None:
        self.pack, self._fragment, self._is_scalar, self._streams = pack, fragment, scalar, False
        self._output: JsonSchema | None = None
        self._published: JsonSchema | None = None
        self.wraps = False

    @classmethod
    def from_signature(cls, signature: Signature, structured: StructuredOption = None) -> ResultPacker:
        """Raises UsageError for a return type that has no JSON form."""
        made = _Planner(signature, structured).plan()
        made._streams = signature.flow in _ITERATORS
        if made._fragment is not None and structured != "bare":
            made.wraps = made._streams or _root(made._fragment.output).get("type") != "object"
        return made

    def publish_schema(self, dialect: str | None = None) -> JsonSchema | None:
        """The schema of the structured content as clients see it: portable, and wrapped where the content is."""
        if self._fragment is None or self._is_scalar:
            return None
        if self._published is None:
            self._published = self.wrap_schema(
                move_combiners_to_description(self._list_yielded(self._fragment.portable_output))
            )
        return self._published if dialect is None else narrow_schema_to_dialect(self._published, dialect)

    def wrap_schema(self, schema: JsonSchema) -> JsonSchema:
        """The schema of what is sent for this one: wrapped where the content is."""
        if not self.wraps:
            return _root(schema)
        inner = {key: value for key, value in schema.items() if key != "$defs"}
        wrapped: JsonSchema = {
            "type": "object",
            "properties": {WRAPPED_RESULT_KEY: inner},
            "required": [WRAPPED_RESULT_KEY],
        }
        return wrapped | ({"$defs": schema["$defs"]} if "$defs" in schema else {})

    @property
    def schema(self) -> JsonSchema | None:
        """The output JSON Schema; None when the result is text or content only."""
        if self._fragment is None or self._is_scalar:
            return None
        if self._output is None:
            self._output = self._list_yielded(self._fragment.compact_output)
        return self._output

    def _list_yielded(self, output: JsonSchema) -> JsonSchema:
        """The schema of all values of a generator; of other functions, their own."""
        if not self._streams:
            return output
        items = {key: value for key, value in output.items() if key != "$defs"}
        return {"type": "array", "items": items} | ({"$defs": output["$defs"]} if "$defs" in output else {})

    @property
    def bare_scalar_schema(self) -> JsonSchema | None:
        """The JSON Schema for decoding the text of a bare scalar; None for everything else.

        A union of strings and other scalars has none, because its text does not tell them apart.
        """
        if self._fragment is None or not self._is_scalar or self._streams:
            return None
        if self._output is None:
            self._output = self._fragment.compact_output
        kinds = find_json_types(self._output) - {"null"}
        return None if "string" in kinds and len(kinds) > 1 else self._output

    def join_yielded_values(self, values: list[Any]) -> PackedResult:
        """The result of a generator: everything it yielded and emitted, with adjacent text merged."""
        parts: list[ContentPart] = []
        structured: list[Any] = []
        # Adjacent texts are joined at their end: joining word by word would copy all earlier words each time.
        run: list[str] = []
        for value in values:
            if isinstance(value, EmittedPart):
                value = value.part
                outcome = pack_untyped_result(value)
            else:
                outcome = self.pack(value)
                structured.append(outcome.structured)
            is_text = type(value) is str or type(value) is Text
            texts = [part for part in outcome.parts if is_text and isinstance(part, Text)]
            bare = [part.text for part in texts if part.annotations is None and part.meta is None]
            if run and not bare:
                parts.append(Text("".join(run)))
                run.clear()
            run += bare
            parts += outcome.parts if not bare else ()
        if run:
            parts.append(Text("".join(run)))
        if self.schema is None and not (structured and all(item is not NO_STRUCTURED_CONTENT for item in structured)):
            return PackedResult(parts)
        return PackedResult(parts, structured)


def _root(schema: JsonSchema) -> JsonSchema:
    """A schema with its definition in place of a reference at its root. A model that holds itself has one."""
    defs: JsonSchema = schema.get("$defs", {})
    found: JsonSchema | None = defs.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return {**found, "$defs": defs} if found is not None else schema


class _Planner:
    """Chooses the packer for one signature."""

    def __init__(self, signature: Signature, structured: StructuredOption) -> None:
        self.signature, self.structured = signature, structured

    def plan(self) -> ResultPacker:
        annotation = find_result_annotation(self.signature)
        inner, _ = split_annotated(annotation)
        if self.signature.flow in _ITERATORS and annotation is self.signature.returns:
            self.refuse_values(annotation, inner)
        if annotation is Parameter.empty or inner in (Any, object) or _is_loose_list(inner):
            return self.loose("its return type says nothing")
        if ToolResult in list_union_members(inner):
            return self.loose("a ToolResult says itself what its data is")
        if raw := [option for option in list_union_members(inner) if option in (bytes, bytearray, memoryview)]:
            raise self.wrong(
                f"{raw[0].__name__} says nothing about what the bytes are",
                fix='return File(data=…, name="…"), Image(data=…, format="…") or Audio(…)',
            )
        if inner in (Never, NoReturn):
            return ResultPacker(pack_none)
        if _has_parts(inner):
            if not _only_content(inner):
                return self.loose("it mixes content and data")
            if self.structured:
                raise self.wrong("structured=True, but it returns content blocks", fix="remove structured=True")
            return ResultPacker(content_packer(inner))
        return self.data(annotation, inner)

    def refuse_values(self, annotation: Any, inner: Any) -> None:
        """Refuse a generator that is annotated with its values, or with all of them in a list."""
        if annotation is Parameter.empty or inner in (Any, object):
            return
        origin, args = get_origin(inner) or inner, get_args(inner)
        concrete = ABSTRACT_TO_CONCRETE_TYPES.get(origin, origin)
        is_many = concrete in (list, tuple, set, frozenset)
        each = (format_annotation(args[0]) if args else "Any") if is_many else format_annotation(annotation)
        raise self.wrong(
            f"{self.signature.name} yields, so it returns an iterator, not {format_annotation(annotation)}",
            fix=f"write -> {_ITERATORS[self.signature.flow]}[{each}], or return "
            + (f"a {concrete.__name__}" if is_many else "the value"),
        )

    def loose(self, reason: str) -> ResultPacker:
        if self.structured:
            raise self.wrong(
                f"structured=True, but {reason}", fix="annotate the return with a model, dataclass, TypedDict or scalar"
            )
        return ResultPacker(pack_any_as_text if self.structured is False else pack_untyped_result)

    def data(self, annotation: Any, inner: Any) -> ResultPacker:
        if not self.structured:
            if inner is str:
                return ResultPacker(pack_str)
            if inner in (None, NoneType):
                return ResultPacker(pack_none)
        try:
            made = get_annotation_schemas(annotation)
            kinds = find_json_types(made.output)
        except Exception as error:
            raise make_annotation_error(annotation, error, where=self.signature.where, subject=self.subject) from error
        if self.structured is False:
            plain = _plainer(made, annotation)
            return ResultPacker(lambda value: PackedResult(_text(plain(value))))
        if self.structured or kinds & {"array", "object", "any"}:
            return ResultPacker(make_structured_packer(made, annotation), made)
        return ResultPacker(scalar_packer(made, annotation, inner), made, scalar=True)

    @property
    def subject(self) -> str:
        return f"{self.signature.name}: return"

    def wrong(self, problem: str, *, fix: str) -> UsageError:
        return UsageError(f"{self.subject}: {problem}", where=self.signature.where, fix=fix)


_YIELDING = {abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable, abc.Iterator, abc.Generator, abc.Iterable}

_ITERATORS = {"generator": "Iterator", "async_generator": "AsyncIterator"}


def find_result_annotation(signature: Signature) -> Any:
    """The annotation of one answer: of the awaited value, or of each yielded value."""
    annotation = signature.returns
    inner, _ = split_annotated(annotation)
    origin, args = get_origin(inner) or inner, get_args(inner)
    if signature.flow in _ITERATORS:
        return args[0] if origin in _YIELDING and args else signature.returns if origin not in _YIELDING else Any
    if signature.flow == "async" and origin is abc.Coroutine and len(args) == 3:
        return args[2]
    if signature.flow == "async" and origin is abc.Awaitable and args:
        return args[0]
    return annotation


def _is_loose_list(annotation: Any) -> bool:
    origin, args = get_origin(annotation) or annotation, get_args(annotation)
    return origin in (list, tuple) and (not args or args[0] in (Any, object))


def _has_parts(annotation: Any) -> bool:
    inner, _ = split_annotated(annotation)
    if isinstance(inner, type) and issubclass(inner, ContentPart):
        return True
    if len(options := list_union_members(inner)) > 1:
        return any(map(_has_parts, options))
    return _is_sequence(inner) and any(map(_has_parts, get_args(inner)))


def _only_content(annotation: Any) -> bool:
    inner, _ = split_annotated(annotation)
    if inner in (str, NoneType) or (isinstance(inner, type) and issubclass(inner, ContentPart)):
        return True
    if len(options := list_union_members(inner)) > 1:
        return all(map(_only_content, options))
    return _is_sequence(inner) and all(arg is Ellipsis or _only_content(arg) for arg in get_args(inner))


def _is_sequence(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return origin is not None and ABSTRACT_TO_CONCRETE_TYPES.get(origin, origin) in (list, tuple)


__all__ = [
    "NO_STRUCTURED_CONTENT",
    "Audio",
    "Embedded",
    "File",
    "Image",
    "Link",
    "PackedResult",
    "ContentPart",
    "ResultPacker",
    "Text",
    "pack_untyped_result",
]


# -- Values made into results. Each function's packer is chosen once, at registration.


# Values of a broken result that are searched for a forgotten `await`: it may be large, or contain itself.
LOOKED_AT = 10_000


class _Nothing:
    """No structured content. It is not None, because None is a value too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False


NO_STRUCTURED_CONTENT: Any = _Nothing()


class PackedResult:
    """A function's answer before a protocol encodes it. `structured` is NOTHING if there is no structured content.

    `said` is a plain string if the answer is one bare text, as most are. Otherwise it is the same as `parts`.
    """

    __slots__ = ("said", "structured")

    def __init__(self, said: list[ContentPart] | str, structured: Any = NO_STRUCTURED_CONTENT) -> None:
        self.said, self.structured = said, structured

    @property
    def parts(self) -> list[ContentPart]:
        return [Text(self.said)] if isinstance(self.said, str) else self.said

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedResult):
            return NotImplemented
        return self.parts == other.parts and self.structured == other.structured

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Outcome({self.parts!r}, structured={self.structured!r})"


class ResultMismatch(TypeError):
    """A returned value does not fit its annotation or has no JSON form. `forgotten`: the call that was not awaited."""

    forgotten = ""


class EmittedPart:
    """A part that `ctx.emit` added: content only, whatever the return annotation says."""

    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


def estimate_min_result_bytes(value: Any) -> int:
    """The least number of bytes that a yielded or emitted value takes in a result, without packing it."""
    if isinstance(value, str | bytes):
        return len(value) or 1  # so that a function that yields empty values for ever is stopped too
    if isinstance(value, EmittedPart):
        return estimate_min_result_bytes(value.part)
    if not isinstance(value, ContentPart) or isinstance(value, Audio):  # a peer without audio gets a short note instead
        return 1
    text: str | None = getattr(value, "text", None)
    data: bytes | None = getattr(value, "data", None)
    return len(text) if text is not None else 4 * len(data or b"") // 3


NO_JSON: Final = "Unable to serialize unknown type"
"""How Pydantic begins to say that a value, or one inside it, cannot be JSON."""
NO_FORM: Final = "was returned, which has no JSON form"

Pack = Callable[[Any], PackedResult]


def pack_str(value: Any) -> PackedResult:
    if type(value) is str or isinstance(value, str):
        return PackedResult(value)
    raise _unfit(value, "str")


def pack_none(value: Any) -> PackedResult:
    if value is None:
        return PackedResult([])
    raise _unfit(value, "None")


def scalar_packer(made: AnnotationSchemas, annotation: Any, inner: Any) -> Pack:
    exact = _EXACT.get(inner) if isinstance(inner, type) else None
    plain, write = _plainer(made, annotation), _writer(made, annotation)

    def pack(value: Any) -> PackedResult:
        if exact is not None and type(value) is inner:
            return PackedResult(exact(value))
        found = plain(value)
        return PackedResult(write(found) if isinstance(found, float) else _text(found))

    return pack


_EXACT: dict[type, Callable[[Any], str]] = {int: str, bool: {True: "true", False: "false"}.__getitem__}


def make_structured_packer(made: AnnotationSchemas, annotation: Any) -> Pack:
    plain, write = _plainer(made, annotation), _writer(made, annotation)

    def pack(value: Any) -> PackedResult:
        found = plain(value)
        return PackedResult(found if isinstance(found, str) else write(found), found)

    return pack


def _writer(made: AnnotationSchemas, annotation: Any) -> Callable[[Any], str]:
    """Makes the JSON text. It raises ResultMismatch for an infinity or NaN where the schema says number."""
    write = _json
    is_known = False

    def write_checked(plain: Any) -> str:
        text = _json(plain, "constants")
        # No look at every value: the text tells. Single letters are found ten times as fast as words.
        if not (("N" in text and "NaN" in text) or ("I" in text and "Infinity" in text)):
            return text
        from defserve.binding.problems import describe_refused_number

        if (problem := describe_refused_number(plain, made.output)) is not None:
            raise _unfit(plain, format_annotation(annotation), problem)
        return _json(plain)

    def write_plain(plain: Any) -> str:
        nonlocal write, is_known
        if not is_known:  # at the first result, not at the start
            write = (
                write_checked
                if any("number" in as_list(node.get("type")) for node in walk_schema(made.output))
                else _json
            )
            is_known = True
        return write(plain)

    return write_plain


def _plainer(made: AnnotationSchemas, annotation: Any) -> Callable[[Any], Any]:
    """Checks a value against the annotation and makes plain JSON data. Instances of a model are not checked again."""

    def plain(value: Any) -> Any:
        try:
            checked = made.validator.validate_python(value, by_alias=True, by_name=True)
            return made.serializer.to_python(checked, mode="json", by_alias=True, warnings="error")
        except ValidationError as error:
            raise _unfit(value, format_annotation(annotation), _first(error)) from None
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            if reason.startswith(NO_JSON):
                raise _misfit(value, NO_FORM, reason) from None
            raise _unfit(value, format_annotation(annotation), reason) from None

    return plain


def content_packer(annotation: Any) -> Pack:
    options = [split_annotated(option)[0] for option in list_union_members(annotation)]
    allowed = tuple(option for option in options if isinstance(option, type) and not get_origin(option))
    sequences = len(allowed) < len(options)

    def pack(value: Any) -> PackedResult:
        if is_array(value) and sequences:
            return PackedResult([part for item in value for part in _as_parts(item)])
        if isinstance(value, allowed):
            return PackedResult(_as_parts(value))
        raise _unfit(value, format_annotation(annotation))

    return pack


def _as_parts(item: Any) -> list[ContentPart]:
    if isinstance(item, ContentPart):
        return [item]
    if item is None:
        return []
    if isinstance(item, str):
        return [Text(item)]
    raise _unfit(item, "content (str, Text, Image, Audio, File, Link, Embedded)")


def pack_untyped_result(value: Any) -> PackedResult:
    """The result of a value without a return annotation."""
    if isinstance(value, ToolResult):
        return _pack_tool_result(value)
    if is_array(value) and any(isinstance(item, ContentPart) for item in value):
        return PackedResult([part for item in value for part in pack_untyped_result(item).parts])
    if value is None or isinstance(value, str | ContentPart):
        return PackedResult(_as_parts(value))
    plain = convert_to_plain_json(value)
    if isinstance(plain, dict | list):
        return PackedResult(_json(plain), plain)
    return PackedResult(_text(plain))


def _pack_tool_result(value: ToolResult) -> PackedResult:
    items: Iterable[Any] = value.content if is_array(value.content) else (value.content,)
    parts = [part for item in items for part in _as_parts(item)]
    if value.data is None:
        return PackedResult(parts)
    if not is_object(plain := convert_to_plain_json(value.data)):
        raise _unfit(value.data, "an object (a dict, a model or a dataclass) as the data of a ToolResult")
    return PackedResult(parts, plain)


def pack_any_as_text(value: Any) -> PackedResult:
    return PackedResult(pack_untyped_result(value).parts)


def convert_to_plain_json(value: Any) -> Any:
    """The plain JSON data of any value. Raises ResultMismatch if it has none."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise ResultMismatch('bytes were returned: return File(data=…, name="…") or Image(data=…, format="…") instead')
    try:
        try:
            return pydantic_core.to_jsonable_python(value, by_alias=True)
        except UnicodeEncodeError:  # lone surrogates in keys; those in values are met when they are written
            return pydantic_core.to_jsonable_python(replace_surrogates(value), by_alias=True)
    except (ValueError, RecursionError) as error:
        raise _misfit(value, NO_FORM, str(error).partition("\n")[0]) from None


def _text(plain: Any) -> list[ContentPart] | str:
    if plain is None:
        return []
    return plain if isinstance(plain, str) else _json(plain)


def _json(plain: Any, non_finite: Literal["null", "constants"] = "null") -> str:
    try:
        return pydantic_core.to_json(plain, inf_nan_mode=non_finite).decode()
    except PydanticSerializationError:
        # A name that the file system gave may hold lone surrogates.
        return pydantic_core.to_json(replace_surrogates(plain), inf_nan_mode=non_finite).decode()


def _unfit(value: Any, wanted: str, reason: str = "") -> ResultMismatch:
    return _misfit(value, f"was returned where {wanted} was promised", reason)


def _misfit(value: Any, problem: str, reason: str) -> ResultMismatch:
    forgotten = ""
    waiting: Any = _find_unfinished(value)
    if isinstance(waiting, Coroutine):
        coroutine = cast("Coroutine[Any, Any, Any]", waiting)
        name: str = getattr(coroutine, "__qualname__", None) or getattr(coroutine, "__name__", "it")
        forgotten = f"{name.replace('Context.', 'ctx.')}(…)"  # as the author writes it
        coroutine.close()
        reason = f"`await` is missing before {forgotten}"
    elif waiting is not None:
        reason = "an async generator is no value: collect it, [each async for each in …], or yield its values"
    misfit = ResultMismatch(
        f"{_get_type_name(value)} {problem}: {reason}" if reason else f"{_get_type_name(value)} {problem}"
    )
    misfit.forgotten = forgotten
    return misfit


def _get_type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _find_unfinished(value: object) -> Any:
    """A coroutine or async generator that is this value or inside it; None if there is none nearby."""
    nearby = islice(walk_graph([value], _list_members), LOOKED_AT)
    return next(filter(lambda each: isinstance(each, Coroutine | AsyncGenerator), nearby), None)


def _list_members(value: object) -> Iterable[object]:
    """The members of a value that is made of others."""
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    if isinstance(value, list | tuple | set | frozenset):
        return cast("list[object]", value)
    is_record = hasattr(type(value), "__pydantic_fields__") or hasattr(type(value), "__dataclass_fields__")
    return vars(value).values() if is_record and hasattr(value, "__dict__") else ()


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False)[0]
    loc, problem = details["loc"], details["msg"]
    if loc[-1:] == ("[key]",) and details["type"] == "string_type":
        key = details["input"]
        loc, problem = (
            loc[:-2],
            f"the key {key!r} is no text: use str({key!r}), or declare dict[{_get_type_name(key)}, …]",
        )
    at = ".".join(map(str, loc))
    return f"{at}: {problem}" if at else problem
