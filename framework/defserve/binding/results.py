"""What a function returns, as content parts and structured content, by rules fixed at registration.

| returned                                         | parts             | structured | schema             |
|--------------------------------------------------|-------------------|------------|--------------------|
| `str`                                            | one Text          |            |                    |
| Text, Image, Audio, File, Link, Embedded, lists  | themselves        |            |                    |
| int, float, bool, Literal, Enum, date and such   | its JSON text     |            | only in `scalar`   |
| None                                             | none              |            |                    |
| model, dataclass, TypedDict, dict                | its JSON text     | yes        | yes                |
| list, union                                      | its JSON text     | wrapped    | wrapped            |
| not annotated, Any, bare list                    | by the value, as above, without a schema           |

A scalar whose JSON is a string is sent without quotes. `structured=True` gives a scalar structured content too,
wrapped; `structured=False` leaves only the text. Many clients take only an object as structured content, so anything
else is wrapped as `{"result": …}`. The declared type decides, never the value. `structured="bare"` does not wrap.
"""

from __future__ import annotations

import collections.abc as abc
from inspect import Parameter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, NoReturn, TypeAlias, get_args, get_origin

from defserve.binding.annotations import members, peel, spelled
from defserve.binding.arguments.scalars import CONCRETE
from defserve.binding.arguments.schema import Fragment, lookup, unusable
from defserve.binding.content import Audio, Embedded, File, Image, Link, Part, Text
from defserve.binding.packers import (
    NOTHING,
    EmittedPart,
    Pack,
    PackedResult,
    content_packer,
    pack_any,
    pack_any_as_text,
    pack_none,
    pack_str,
    scalar_packer,
    structured_packer,
    text_packer,
)
from defserve.errors import UsageError
from defserve.wire.jsonvalue import JsonSchema, as_list

if TYPE_CHECKING:
    from defserve.binding.signature import Signature


Structured: TypeAlias = bool | Literal["bare"] | None
"""Whether a result has structured content: yes, no, yes but never wrapped, or by its type (None)."""

WRAP: Final = "result"


class Returns:
    """How one function's results are packed.

    `pack` makes the result of a returned value (of a generator: of one yielded value) and raises TypeError when it
    does not fit the annotation. `join` makes the result of all the values a generator yielded. `wraps`: the declared
    type is not an object, so its structured content is wrapped.
    """

    __slots__ = ("pack", "wraps", "_fragment", "_is_scalar", "_streams", "_output")

    def __init__(self, pack: Pack, fragment: Fragment | None = None, *, scalar: bool = False) -> None:
        self.pack, self._fragment, self._is_scalar, self._streams = pack, fragment, scalar, False
        self._output: JsonSchema | None = None
        self.wraps = False

    @classmethod
    def of(cls, signature: Signature, structured: Structured = None) -> Returns:
        """Raises UsageError for a return type that has no JSON form."""
        made = _Planner(signature, structured).plan()
        made._streams = signature.flow in _ITERATORS
        if made._fragment is not None and structured != "bare":
            made.wraps = made._streams or _root(made._fragment.output).get("type") != "object"
        return made

    @property
    def published(self) -> JsonSchema | None:
        """The schema of the structured content as it is sent: `schema`, wrapped where the content is."""
        if (schema := self.schema) is None or not self.wraps:
            return None if schema is None else _root(schema)
        inner = {key: value for key, value in schema.items() if key != "$defs"}
        wrapped: JsonSchema = {"type": "object", "properties": {WRAP: inner}, "required": [WRAP]}
        return wrapped | ({"$defs": schema["$defs"]} if "$defs" in schema else {})

    @property
    def schema(self) -> JsonSchema | None:
        """The output JSON Schema; None when the result is text or content only."""
        if self._fragment is None or self._is_scalar:
            return None
        if self._output is None:
            output = self._fragment.compact_output
            if self._streams:
                items = {key: value for key, value in output.items() if key != "$defs"}
                output = {"type": "array", "items": items} | ({"$defs": output["$defs"]} if "$defs" in output else {})
            self._output = output
        return self._output

    @property
    def scalar(self) -> JsonSchema | None:
        """The JSON Schema for decoding the text of a bare scalar; None for everything else.

        A union of strings and other scalars has none, because its text does not tell them apart.
        """
        if self._fragment is None or not self._is_scalar or self._streams:
            return None
        if self._output is None:
            self._output = self._fragment.compact_output
        kinds = _scalar_kinds(self._output) - {"null"}
        return None if "string" in kinds and len(kinds) > 1 else self._output

    def join(self, values: list[Any]) -> PackedResult:
        """The result of a generator: everything it yielded and emitted, with adjacent text merged."""
        parts: list[Part] = []
        structured: list[Any] = []
        # Adjacent texts are joined at their end: joining word by word would copy all earlier words each time.
        run: list[str] = []
        for value in values:
            if isinstance(value, EmittedPart):
                value = value.part
                outcome = pack_any(value)
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
        if self.schema is None and not (structured and all(item is not NOTHING for item in structured)):
            return PackedResult(parts)
        return PackedResult(parts, structured)


def _root(schema: JsonSchema) -> JsonSchema:
    """A schema with its definition in place of a reference at its root. A model that holds itself has one."""
    defs: JsonSchema = schema.get("$defs", {})
    found: JsonSchema | None = defs.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return {**found, "$defs": defs} if found is not None else schema


def _scalar_kinds(schema: JsonSchema) -> set[str]:
    if "anyOf" in schema:
        return {kind for option in schema["anyOf"] for kind in _scalar_kinds(option)}
    return set(as_list(schema.get("type", "string")))


class _Planner:
    """Chooses the packer for one signature."""

    def __init__(self, signature: Signature, structured: Structured) -> None:
        self.signature, self.structured = signature, structured

    def plan(self) -> Returns:
        annotation = answered(self.signature)
        inner, _ = peel(annotation)
        if self.signature.flow in _ITERATORS and annotation is self.signature.returns:
            self.refuse_values(annotation, inner)
        if annotation is Parameter.empty or inner in (Any, object) or _is_loose_list(inner):
            return self.loose("its return type says nothing")
        if raw := [option for option in members(inner) if option in (bytes, bytearray, memoryview)]:
            raise self.wrong(
                f"{raw[0].__name__} says nothing about what the bytes are",
                fix='return File(data=…, name="…"), Image(data=…, format="…") or Audio(…)',
            )
        if inner in (Never, NoReturn):
            return Returns(pack_none)
        if _has_parts(inner):
            if not _only_content(inner):
                return self.loose("it mixes content and data")
            if self.structured:
                raise self.wrong("structured=True, but it returns content blocks", fix="remove structured=True")
            return Returns(content_packer(inner))
        return self.data(annotation, inner)

    def refuse_values(self, annotation: Any, inner: Any) -> None:
        """Refuse a generator that is annotated with its values, or with all of them in a list."""
        if annotation is Parameter.empty or inner in (Any, object):
            return
        origin, args = get_origin(inner) or inner, get_args(inner)
        concrete = CONCRETE.get(origin, origin)
        is_many = concrete in (list, tuple, set, frozenset)
        each = (spelled(args[0]) if args else "Any") if is_many else spelled(annotation)
        raise self.wrong(
            f"{self.signature.name} yields, so it returns an iterator, not {spelled(annotation)}",
            fix=f"write -> {_ITERATORS[self.signature.flow]}[{each}], or return "
            + (f"a {concrete.__name__}" if is_many else "the value"),
        )

    def loose(self, reason: str) -> Returns:
        if self.structured:
            raise self.wrong(
                f"structured=True, but {reason}", fix="annotate the return with a model, dataclass, TypedDict or scalar"
            )
        return Returns(pack_any_as_text if self.structured is False else pack_any)

    def data(self, annotation: Any, inner: Any) -> Returns:
        if not self.structured:
            if inner is str:
                return Returns(pack_str)
            if inner in (None, NoneType):
                return Returns(pack_none)
        try:
            made = lookup(annotation)
            kinds = _root_kinds(made.output)
        except Exception as error:
            raise unusable(annotation, error, where=self.signature.where, subject=self.subject) from error
        if self.structured is False:
            return Returns(text_packer(made, annotation))
        if self.structured or kinds & {"array", "object", "any"}:
            return Returns(structured_packer(made, annotation), made)
        return Returns(scalar_packer(made, annotation, inner), made, scalar=True)

    @property
    def subject(self) -> str:
        return f"{self.signature.name}: return"

    def wrong(self, problem: str, *, fix: str) -> UsageError:
        return UsageError(f"{self.subject}: {problem}", where=self.signature.where, fix=fix)


_YIELDING = {abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable, abc.Iterator, abc.Generator, abc.Iterable}


_ITERATORS = {"generator": "Iterator", "async_generator": "AsyncIterator"}


def answered(signature: Signature) -> Any:
    """The annotation of one answer: of the awaited value, or of each yielded value."""
    annotation = signature.returns
    inner, _ = peel(annotation)
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
    inner, _ = peel(annotation)
    if isinstance(inner, type) and issubclass(inner, Part):
        return True
    if len(options := members(inner)) > 1:
        return any(map(_has_parts, options))
    return _is_sequence(inner) and any(map(_has_parts, get_args(inner)))


def _only_content(annotation: Any) -> bool:
    inner, _ = peel(annotation)
    if inner in (str, NoneType) or (isinstance(inner, type) and issubclass(inner, Part)):
        return True
    if len(options := members(inner)) > 1:
        return all(map(_only_content, options))
    return _is_sequence(inner) and all(arg is Ellipsis or _only_content(arg) for arg in get_args(inner))


def _is_sequence(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return origin is not None and CONCRETE.get(origin, origin) in (list, tuple)


def _root_kinds(schema: JsonSchema) -> set[str]:
    """The JSON types a result may have at its root."""
    defs: JsonSchema = schema.get("$defs", {})
    kinds: set[str] = set()
    seen: set[int] = set()
    pending = [schema]
    while pending:
        here = pending.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        options = [option for name in ("anyOf", "oneOf", "allOf") for option in here.get(name, ())]
        if ref := here.get("$ref"):
            options.append(defs[ref.rpartition("/")[2]])
        pending.extend(options)
        if not options:
            kinds.update(as_list(here.get("type", "string" if "enum" in here or "const" in here else "any")))
    return kinds


__all__ = [
    "NOTHING",
    "Audio",
    "Embedded",
    "File",
    "Image",
    "Link",
    "PackedResult",
    "Part",
    "Returns",
    "Text",
    "pack_any",
]
