"""Values made into results. Each function's packer is chosen once, at registration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Literal, cast, get_origin

import pydantic_core
from pydantic_core import PydanticSerializationError, ValidationError

from defserve.binding.annotations import members, peel, spelled
from defserve.binding.arguments.compact import walk
from defserve.binding.arguments.schema import Fragment
from defserve.binding.content import Audio, Part, Text
from defserve.wire.jsonvalue import as_list, is_array, without_surrogates

# Values of a broken result that are searched for a forgotten `await`: it may be large, or contain itself.
LOOKED_AT = 10_000


class _Nothing:
    """No structured content. It is not None, because None is a value too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False


NOTHING: Any = _Nothing()


class PackedResult:
    """A function's answer before a protocol encodes it. `structured` is NOTHING if there is no structured content.

    `said` is a plain string if the answer is one bare text, as most are. Otherwise it is the same as `parts`.
    """

    __slots__ = ("said", "structured")

    def __init__(self, said: list[Part] | str, structured: Any = NOTHING) -> None:
        self.said, self.structured = said, structured

    @property
    def parts(self) -> list[Part]:
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


def least_size(value: Any) -> int:
    """The least number of bytes that a yielded or emitted value takes in a result, without packing it."""
    if isinstance(value, str | bytes):
        return len(value) or 1  # so that a function that yields empty values for ever is stopped too
    if isinstance(value, EmittedPart):
        return least_size(value.part)
    if not isinstance(value, Part) or isinstance(value, Audio):  # a peer without audio gets a short note instead
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


def scalar_packer(made: Fragment, annotation: Any, inner: Any) -> Pack:
    exact = _EXACT.get(inner) if isinstance(inner, type) else None
    plain, write = _plainer(made, annotation), _writer(made, annotation)

    def pack(value: Any) -> PackedResult:
        if exact is not None and type(value) is inner:
            return PackedResult(exact(value))
        found = plain(value)
        return PackedResult(write(found) if isinstance(found, float) else _text(found))

    return pack


_EXACT: dict[type, Callable[[Any], str]] = {int: str, bool: {True: "true", False: "false"}.__getitem__}


def text_packer(made: Fragment, annotation: Any) -> Pack:
    plain = _plainer(made, annotation)
    return lambda value: PackedResult(_text(plain(value)))


def structured_packer(made: Fragment, annotation: Any) -> Pack:
    plain, write = _plainer(made, annotation), _writer(made, annotation)

    def pack(value: Any) -> PackedResult:
        found = plain(value)
        return PackedResult(found if isinstance(found, str) else write(found), found)

    return pack


def _writer(made: Fragment, annotation: Any) -> Callable[[Any], str]:
    """Makes the JSON text. It raises ResultMismatch for an infinity or NaN where the schema says number."""
    write = _json
    is_known = False

    def checked(plain: Any) -> str:
        text = _json(plain, "constants")
        # No look at every value: the text tells. Single letters are found ten times as fast as words.
        if not (("N" in text and "NaN" in text) or ("I" in text and "Infinity" in text)):
            return text
        from defserve.binding.non_finite import refused_null

        if (problem := refused_null(plain, made.output)) is not None:
            raise _unfit(plain, spelled(annotation), problem)
        return _json(plain)

    def written(plain: Any) -> str:
        nonlocal write, is_known
        if not is_known:  # at the first result, not at the start
            write = checked if any("number" in as_list(node.get("type")) for node in walk(made.output)) else _json
            is_known = True
        return write(plain)

    return written


def _plainer(made: Fragment, annotation: Any) -> Callable[[Any], Any]:
    """Checks a value against the annotation and makes plain JSON data. Instances of a model are not checked again."""

    def plain(value: Any) -> Any:
        try:
            checked = made.validator.validate_python(value, by_alias=True, by_name=True)
            return made.serializer.to_python(checked, mode="json", by_alias=True, warnings="error")
        except ValidationError as error:
            raise _unfit(value, spelled(annotation), _first(error)) from None
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            if reason.startswith(NO_JSON):
                raise _misfit(value, NO_FORM, reason) from None
            raise _unfit(value, spelled(annotation), reason) from None

    return plain


def content_packer(annotation: Any) -> Pack:
    options = [peel(option)[0] for option in members(annotation)]
    allowed = tuple(option for option in options if isinstance(option, type) and not get_origin(option))
    sequences = len(allowed) < len(options)

    def pack(value: Any) -> PackedResult:
        if is_array(value) and sequences:
            return PackedResult([part for item in value for part in _as_parts(item)])
        if isinstance(value, allowed):
            return PackedResult(_as_parts(value))
        raise _unfit(value, spelled(annotation))

    return pack


def _as_parts(item: Any) -> list[Part]:
    if isinstance(item, Part):
        return [item]
    if item is None:
        return []
    if isinstance(item, str):
        return [Text(item)]
    raise _unfit(item, "content (str, Text, Image, Audio, File, Link, Embedded)")


def pack_any(value: Any) -> PackedResult:
    """The result of a value without a return annotation."""
    if is_array(value) and any(isinstance(item, Part) for item in value):
        return PackedResult([part for item in value for part in pack_any(item).parts])
    if value is None or isinstance(value, str | Part):
        return PackedResult(_as_parts(value))
    plain = plain_any(value)
    if isinstance(plain, dict | list):
        return PackedResult(_json(plain), plain)
    return PackedResult(_text(plain))


def pack_any_as_text(value: Any) -> PackedResult:
    return PackedResult(pack_any(value).parts)


def plain_any(value: Any) -> Any:
    """The plain JSON data of any value. Raises ResultMismatch if it has none."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise ResultMismatch('bytes were returned: return File(data=…, name="…") or Image(data=…, format="…") instead')
    try:
        try:
            return pydantic_core.to_jsonable_python(value, by_alias=True)
        except UnicodeEncodeError:  # lone surrogates in keys; those in values are met when they are written
            return pydantic_core.to_jsonable_python(without_surrogates(value), by_alias=True)
    except (ValueError, RecursionError) as error:
        raise _misfit(value, NO_FORM, str(error).partition("\n")[0]) from None


def _text(plain: Any) -> list[Part] | str:
    if plain is None:
        return []
    return plain if isinstance(plain, str) else _json(plain)


def _json(plain: Any, non_finite: Literal["null", "constants"] = "null") -> str:
    try:
        return pydantic_core.to_json(plain, inf_nan_mode=non_finite).decode()
    except PydanticSerializationError:
        # A name that the file system gave may hold lone surrogates.
        return pydantic_core.to_json(without_surrogates(plain), inf_nan_mode=non_finite).decode()


def _unfit(value: Any, wanted: str, reason: str = "") -> ResultMismatch:
    return _misfit(value, f"was returned where {wanted} was promised", reason)


def _misfit(value: Any, problem: str, reason: str) -> ResultMismatch:
    forgotten = ""
    waiting: Any = _unfinished(value)
    if isinstance(waiting, Coroutine):
        forgotten = _called(cast("Coroutine[Any, Any, Any]", waiting))
        reason = f"`await` is missing before {forgotten}"
    elif waiting is not None:
        reason = "an async generator is no value: collect it, [each async for each in …], or yield its values"
    misfit = ResultMismatch(f"{_named(value)} {problem}: {reason}" if reason else f"{_named(value)} {problem}")
    misfit.forgotten = forgotten
    return misfit


def _named(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _unfinished(value: object) -> Any:
    """A coroutine or async generator that is this value or inside it; None if there is none nearby."""
    todo: list[object] = [value]
    for _ in range(LOOKED_AT):
        if not todo:
            break
        each = todo.pop()
        if isinstance(each, Coroutine | AsyncGenerator):
            return cast("Any", each)
        todo += _held(each)
    return None


def _held(value: object) -> Iterable[object]:
    """The members of a value that is made of others."""
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    if isinstance(value, list | tuple | set | frozenset):
        return cast("list[object]", value)
    is_record = hasattr(type(value), "__pydantic_fields__") or hasattr(type(value), "__dataclass_fields__")
    return vars(value).values() if is_record and hasattr(value, "__dict__") else ()


def _called(waiting: Coroutine[Any, Any, Any]) -> str:
    """The call that made a coroutine, as the author writes it. The coroutine is closed."""
    name: str = getattr(waiting, "__qualname__", None) or getattr(waiting, "__name__", "it")
    waiting.close()
    return f"{name.replace('Context.', 'ctx.')}(…)"


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False)[0]
    loc, problem = details["loc"], details["msg"]
    if loc[-1:] == ("[key]",) and details["type"] == "string_type":
        key = details["input"]
        loc, problem = loc[:-2], f"the key {key!r} is no text: use str({key!r}), or declare dict[{_named(key)}, …]"
    at = ".".join(map(str, loc))
    return f"{at}: {problem}" if at else problem
