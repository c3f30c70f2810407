"""pydantic's validation errors as one line for each field, with the branches of a union combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import ValidationError

from defserve.binding.arguments.secrets import is_secret
from defserve.binding.arguments.wording import BROKEN, EXPECTED, alternatives, did_you_mean, kind_of, shown, spell_path
from defserve.errors import Problem
from defserve.wire.jsonvalue import JsonSchema, is_array, is_object

MOST = 20
MANY = 10_000
MORE = Problem("", "and perhaps more")
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
        self.expected: str | None = EXPECTED.get(self.type)
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


def explain(error: ValidationError, given: Any, schema: JsonSchema) -> tuple[Problem, ...]:
    """The problems behind a validation error, at most MOST and a count of the rest."""
    if (count := error.error_count()) > MANY:
        # Each problem costs microseconds and a dict, and one message can hold millions.
        return (Problem("", f"{count} problems: the arguments do not have the shape of the schema"),)
    errors = [_Error(details, given) for details in error.errors(include_url=False)]
    settled = _settle(errors)
    problems = dict.fromkeys(_problem(one, schema) for one in settled[:MOST])
    if len(settled) > MOST:
        problems[Problem("", f"and {len(settled) - MOST} more problems")] = None
    return tuple(problems)


def _problem(error: _Error, schema: JsonSchema) -> Problem:
    if error.type == "extra_forbidden" and len(error.path) == 1:
        return Problem("", did_you_mean(str(error.path[0]), schema.get("properties", {})))
    if error.type == "dict_type" and not error.path:
        return Problem("", f"arguments must be an object, got {shown(error.value)}")
    path = error.path
    if error.type.startswith("union_tag_"):
        tag = str(error.context.get("discriminator", "")).strip("'")
        if tag.isidentifier():
            path = (*path, tag)
            if is_object(error.value):
                error.value = error.value.get(tag)
    return Problem(spell_path(path), _reason(error, is_secret(schema, path)))


def _reason(error: _Error, secret: bool) -> str:
    if error.type in ("missing", "union_tag_not_found"):
        return "missing"
    if error.type == "extra_forbidden":
        return "unknown field"
    if error.type in ("value_error", "assertion_error"):
        return " ".join(str(error.context.get("error") or error.message).split())
    got = kind_of(error.value) if secret else shown(error.value)
    if error.type in ("too_short", "too_long"):
        got = str(error.context.get("actual_length"))
        error.context["noun"] = "character" if isinstance(error.value, str) else "item"
    if error.expected:
        return f"expected {error.expected}, got {got}"
    if rule := BROKEN.get(error.type):
        return f"{rule(error.context)}, got {got}"
    if secret:
        return f"not valid, got {got}"
    message = error.message[:1].lower() + error.message[1:].replace("\n", " ")
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

    If the value has the shape of exactly one branch, its errors are the helpful ones.
    """
    told = {label: _settle(errors) for label, errors in branches.items()}
    single = {label: errors[0] for label, errors in told.items() if len(errors) == 1}
    mismatched = {label: error for label, error in single.items() if error.path == at and error.expected is not None}
    shaped = [errors for label, errors in told.items() if label not in mismatched]
    if len(shaped) == 1:
        return shaped[0]
    summary = next(iter(mismatched.values()), None) or _at(at, shaped[0][0])
    summary.expected = alternatives([_wanted(label, mismatched.get(label)) for label in told])
    return [summary]


def _wanted(label: str, mismatch: _Error | None) -> str:
    if mismatch is not None and mismatch.expected:
        return mismatch.expected
    name = label.partition("[")[0]
    return {"list": "array", "dict": "object", "set": "array", "tuple": "array"}.get(name, name)


def _at(at: tuple[str | int, ...], error: _Error) -> _Error:
    """A summary at the union's own place, which may be above the error's."""
    error.path, error.type, error.value = at, "union", error.given
    for step in at:
        error.value = error.value[step]
    return error
