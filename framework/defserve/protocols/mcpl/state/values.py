"""The values of a state's model. Each call has a value of its own, read from JSON and written back to JSON.

What a call leaves is read once more, to be sure that it can be read. The next call gets that value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from defserve.errors import UsageError
from defserve.protocols.mcpl.state.integers import BigIntegers, big_integer, with_texts

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from defserve.stores.checkpoints.contents import CheckpointContent

M = TypeVar("M")


class _Known(NamedTuple, Generic[M]):
    """A content as the model writes it, and a value of it that no call has seen yet, if there is one."""

    text: bytes
    unseen: list[M]


class StateValues(Generic[M]):
    """Raises UsageError for a model that cannot be kept, or that has no initial value.

    `big_integers` says what becomes of integers past 2^53; None keeps them, for a content that no host sees.
    """

    def __init__(self, model: type[M], subject: str, big_integers: BigIntegers | None = None) -> None:
        self._adapter, self._big_integers = _adapter(model), big_integers
        from defserve.binding.arguments.fail_fast import bounded_validator

        # The adapter's own would match a text of any length, and a host may have written it.
        self._validate_json = bounded_validator(self._adapter).validate_json
        self._fresh = self._checked_fresh(model, subject)
        self._known: WeakKeyDictionary[CheckpointContent, _Known[M]] = WeakKeyDictionary()

    def take(self, content: CheckpointContent | None) -> tuple[M, bytes]:
        """A value for one caller alone, and its text. Without content, the initial value. Raises what `read` raises."""
        known = self._known.get(content) if content is not None else None
        if known is not None:
            return known.unseen.pop() if known.unseen else self.read(content), known.text
        value = self.read(content)
        text = self.dump(value)
        if content is not None:
            self._known[content] = _Known(text, [])
        return value, text

    def give(self, content: CheckpointContent, value: M) -> None:
        """Keep an unused value of a content for the next caller."""
        self._known[content] = _Known(self.dump(value), [value])

    def read(self, content: CheckpointContent | None) -> M:
        """A new value. Raises ValueError if the content does not fit the model."""
        return self._validate_json(self._fresh if content is None else content.encoded)

    def of_json(self, data: Any) -> M:
        """A value of what a peer sent. Raises ValueError if it does not fit the model."""
        return self._validate_json(to_json(data))

    def dump(self, value: M) -> bytes:
        text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
        return with_texts(text) if self._big_integers == "text" else text

    def refused_integer(self, text: bytes) -> str | None:
        """Where a text has an integer that must not be kept, as a JSON pointer."""
        return big_integer(text) if self._big_integers == "refuse" else None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the model."""
        return self._adapter.json_schema(mode="serialization")

    def _checked_fresh(self, model: type[M], subject: str) -> bytes:
        try:
            fresh = self.dump(model())
            self._validate_json(fresh)
            return fresh
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{subject}: {model.__name__}() cannot make the initial state: {summary(error)}",
                fix="give every field a default",
            ) from None


def summary(error: Exception) -> str:
    """The first problem, in one line and without the values."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return type(error).__name__
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _adapter(model: type[M]) -> TypeAdapter[M]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    from defserve.binding.arguments.schema import UnusablePattern, refuse_core_patterns

    try:
        made = TypeAdapter(model)
        refuse_core_patterns(made.core_schema)
        return made
    except UnusablePattern as error:
        raise UsageError(f"state: {model.__name__}: {error.problem}", fix=error.fix) from None
    except PydanticUserError as error:
        raise UsageError(f"state: {model!r} cannot be kept as JSON", fix="use a pydantic model") from error
