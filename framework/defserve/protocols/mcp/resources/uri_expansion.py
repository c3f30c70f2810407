"""RFC 6570 URI templates: their parts, and expansion (§3.2).

All of RFC 6570 except prefixes (`{var:3}`). They are refused when parsed, because a value that was cut short cannot be
matched back. This is our own code because matching needs the parts, and the libraries do not expose them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import quote

MAX_TEMPLATE = 2 * 1024


class Operator(NamedTuple):
    lead: str
    separator: str
    named: bool = False
    reserved: bool = False
    if_empty: str = ""


OPERATORS = {
    "": Operator("", ","),
    "+": Operator("", ",", reserved=True),
    "#": Operator("#", ",", reserved=True),
    ".": Operator(".", "."),
    "/": Operator("/", "/"),
    ";": Operator(";", ";", named=True),
    "?": Operator("?", "&", named=True, if_empty="="),
    "&": Operator("&", "&", named=True, if_empty="="),
}

_RESERVED = ":/?#[]@!$&'()*+,;="
_NAME = re.compile(r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?:\.(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+)*")
_ESCAPE = re.compile(r"(%[0-9A-Fa-f]{2})")
BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_LITERAL = re.compile(r"[\x00-\x20\x7f\"<>\\^`|}]")


class Variable(NamedTuple):
    name: str
    explode: bool


class Expression(NamedTuple):
    operator: str
    variables: tuple[Variable, ...]


Part: TypeAlias = str | Expression


def parse(text: str) -> list[Part]:
    """The literals (percent-encoded) and expressions of a template. Raises ValueError with a text for the author."""
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"the template has {len(text)} characters, at most {MAX_TEMPLATE} are allowed")
    parts: list[Part] = []
    at = 0
    while at < len(text):
        start = text.find("{", at)
        literal = text[at:start] if start >= 0 else text[at:]
        if literal:
            parts.append(_literal(literal))
        if start < 0:
            break
        end = text.find("}", start)
        if end < 0:
            raise ValueError(f"the '{{' at position {start} is never closed")
        parts.append(_expression(text[start + 1 : end]))
        at = end + 1
    return parts


def _literal(text: str) -> str:
    wrong = _NOT_LITERAL.search(text) or BROKEN_ESCAPE.search(text)
    if wrong:
        raise ValueError(f"{wrong[0]!r} may not stand in a URI template as it is; percent-encode it")
    return _encode(text, reserved=True)


def _expression(body: str) -> Expression:
    operator = body[:1] if body[:1] in OPERATORS else ""
    variables: list[Variable] = []
    for spec in body[len(operator) :].split(","):
        name = spec.removesuffix("*")
        if ":" in name:
            raise ValueError(f"{{{body}}} cuts a value short, which cannot be matched back; remove the ':' prefix")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{{{body}}} is not an expression: {name!r} is not a variable's name")
        variables.append(Variable(name, name != spec))
    return Expression(operator, tuple(variables))


def expand(parts: Sequence[Part], values: Mapping[str, Any]) -> str:
    """The URI for these values. A value that is missing or None adds nothing."""
    return "".join(part if isinstance(part, str) else _expand_expression(part, values) for part in parts)


def _expand_expression(expression: Expression, values: Mapping[str, Any]) -> str:
    operator = OPERATORS[expression.operator]
    pieces = [
        piece for variable in expression.variables for piece in _pieces(operator, variable, values.get(variable.name))
    ]
    return operator.lead + operator.separator.join(pieces) if pieces else ""


def _pieces(operator: Operator, variable: Variable, value: Any) -> list[str]:
    """What one variable adds: nothing when undefined, otherwise one piece, or one for each item when exploded."""

    def encoded(value: Any) -> str:
        return _encode(str(value).lower() if isinstance(value, bool) else str(value), reserved=operator.reserved)

    def named(name: str, text: str) -> str:
        return f"{name}={text}" if text else f"{name}{operator.if_empty}"

    if value is None:
        return []
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        pairs = [(encoded(key), encoded(item)) for key, item in mapping.items() if item is not None]
        if variable.explode:
            return [named(*pair) if operator.named else "=".join(pair) for pair in pairs]
        texts = [text for pair in pairs for text in pair]
    elif isinstance(value, list | tuple):
        texts = [encoded(item) for item in cast("Sequence[Any]", value) if item is not None]
        if variable.explode:
            return [named(variable.name, text) if operator.named else text for text in texts]
    else:
        texts = [encoded(value)]
    if not texts:
        return []
    text = ",".join(texts)
    return [named(variable.name, text) if operator.named else text]


def _encode(text: str, *, reserved: bool) -> str:
    if not reserved:
        return quote(text, safe="")
    # Odd pieces are escapes already, which reserved expansion keeps.
    pieces = _ESCAPE.split(text)
    return "".join(piece.upper() if odd % 2 else quote(piece, safe=_RESERVED) for odd, piece in enumerate(pieces))
