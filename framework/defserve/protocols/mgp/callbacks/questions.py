"""MGP §13.4: each field of a form as one callback, and reading the answer. No I/O.

| field | callback | answers |
|---|---|---|
| yes or no | `confirmation` | `YES`, or true; `decline` declines; anything else is no |
| a choice | `selection` | an option as shown, or its value; of several choices a list; `cancel` and `decline` decline |
| text, a number | `input` | the text, or a number; `cancel` and `decline` decline |

Null dismisses the question. Null or an empty text leaves an optional field blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from defserve.errors import Declined, Dismissed, ToolError
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.elicitation import Form

CONFIRM, CANCEL, DECLINE = "confirm", "cancel", "decline"
YES = frozenset({CONFIRM, "confirmed", "yes", "true", "approve", "approved", "accept", "accepted"})
"""The words that confirm, in any case. Everything else does not: consent is never guessed."""


class CallbackQuestion:
    """One field. `type`, `message` and `options` are sent as they are."""

    type = "input"

    def __init__(self, message: str, field: Params, *, required: bool) -> None:
        self.message, self.field, self.required = message, field, required

    @property
    def options(self) -> list[str]:
        return []

    def read(self, response: Any) -> Any:
        """The field's value; None for one left blank. Raises Declined, Dismissed, or ToolError if it does not fit."""
        if response is None or response == "":
            if not self.required:
                return None
            if response is None:
                raise Dismissed(f"the user dismissed the question: {self.message}")
        return self._value(response)

    def _value(self, response: Any) -> Any:
        self._raise_if_declined(response, CANCEL, DECLINE)
        if self.field.get("type") in ("number", "integer") and isinstance(response, str):
            return _number(response)
        return response

    def _raise_if_declined(self, response: Any, *words: str) -> None:
        if _word(response) in words:
            raise Declined(f"the user declined: {self.message}")


class CallbackConfirmation(CallbackQuestion):
    """Yes or no. `cancel` is the offered no, so it answers the question."""

    type = "confirmation"

    @property
    def options(self) -> list[str]:
        return [CONFIRM, CANCEL]

    def _value(self, response: Any) -> Any:
        self._raise_if_declined(response, DECLINE)
        return response is True or _word(response) in YES


class CallbackSelection(CallbackQuestion):
    """One of several texts, or some of them. Shown by their labels, if no two are the same."""

    type = "selection"

    def __init__(self, message: str, field: Params, *, required: bool) -> None:
        super().__init__(message, field, required=required)
        self._labels = _labels(field)
        self._values = set(self._labels.values())

    @property
    def options(self) -> list[str]:
        return list(self._labels)

    def _value(self, response: Any) -> Any:
        if self.field.get("type") == "array":
            return [self._choice(each) for each in (response if is_array(response) else [response])]
        return self._choice(response)

    def _choice(self, response: Any) -> str:
        if isinstance(response, str):
            if response in self._labels:
                return self._labels[response]
            if response in self._values:
                return response
            self._raise_if_declined(response, CANCEL, DECLINE)
        raise ToolError(f"the answer to {self.message!r} is none of {', '.join(self.options)}")


def questions(message: str, form: Form) -> Iterator[tuple[str, CallbackQuestion]]:
    """The fields of a form in their order, each with a text that says which it is."""
    alone = len(form.properties) == 1
    for name, field in form.properties.items():
        required = name in form.required
        told = [] if alone else [f"{field.get('title') or name}{'' if required else ' (optional)'}"]
        if field.get("description"):
            told.append(field["description"])
        yield name, _kind(field)(f"{message}\n{': '.join(told)}" if told else message, field, required=required)


def _kind(field: Params) -> type[CallbackQuestion]:
    if field.get("type") == "boolean":
        return CallbackConfirmation
    return (
        CallbackSelection if field.get("type") == "array" or "enum" in field or "oneOf" in field else CallbackQuestion
    )


def _labels(field: Params) -> dict[str, str]:
    """Label → value."""
    if field.get("type") == "array":
        field = field["items"]
    titled: Iterable[Params] | None = field.get("oneOf") or field.get("anyOf")
    if titled is not None:
        values = [choice["const"] for choice in titled]
        labels = [choice.get("title", choice["const"]) for choice in titled]
    else:
        values = list(field["enum"])
        labels = list(field.get("enumNames") or values)
    if len(set(labels)) != len(values):
        labels = values
    return dict(zip(labels, values, strict=True))


def _word(response: Any) -> str:
    return response.strip().lower() if isinstance(response, str) else ""


def _number(text: str) -> Any:
    """The number in a text. Any other text is returned as it is, for the form to complain about."""
    from pydantic_core import from_json

    try:
        value = from_json(text.strip(), allow_inf_nan=False)
    except ValueError:
        return text
    return value if type(value) in (int, float) else text
