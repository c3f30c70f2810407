"""RFC 6570 URI templates, matched in reverse by a linear scan that never backtracks (libraries only expand them).

What RFC 6570 leaves open is settled here, for safety:

- `{var}` takes one non-empty segment: no `/`, `?` or `#`, and once decoded no `/` or `\\` either.
- `{+var}` takes any non-empty text up to `?` or `#`. Right behind a `/` it may not start with a slash, which would make
  the value an absolute path, unless the template says so: `file://{+path}`.
- `{var*}`, `{+var*}`, `{/var*}`, `{.var*}` and `{;var*}` give a list, empty where nothing stands.
- `{?a,b*}` and `{&a}` stand at the end, in any order. Absent ones are left out. Unknown parameters are ignored. A
  repeated one is no match unless exploded. `+` stays `+`. `{#var}` comes last and may be absent.
- Values are percent-decoded once. One that holds NUL or a `..` segment does not match, wherever it stands. Keeping a
  path inside its root (symbolic links, drive letters) is still the caller's duty.
- Refused when parsed: prefixes (`{var:3}`), a name used twice, two variables side by side, two that take any number of
  segments. With any of these it would be unclear where a value ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote_to_bytes

MAX_URI = 8 * 1024

Value: TypeAlias = str | list[str]

_PLACES = {"?": 1, "&": 2, "#": 3}
"""The order in which a template ends; everything else comes before."""

_LOWER_ESCAPE = re.compile(r"%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f])")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Slot(NamedTuple):
    """Where a variable's value stands in a URI, and what it may be."""

    name: str
    open: bool = True
    """Whether it takes any number of segments, or items."""
    stops: str = ""
    """What ends it."""
    slashes: bool = True
    """Whether the decoded value may hold slashes."""
    rooted: bool = False
    """Whether a `/` stands right before it. A value that starts with a slash would then be an absolute path."""
    items: str = ""
    """What separates the items of an exploded variable."""
    label: str = ""
    """What each item of an exploded variable begins with."""

    def parse_value(self, raw: str) -> Value | None:
        if not self.items:
            return self._value(raw)
        values: list[str] = []
        for item in raw.split(self.items):
            value = self._value(item[len(self.label) :]) if item.startswith(self.label) else None
            if value is None:
                return None
            values.append(value)
        return values

    def _value(self, raw: str) -> str | None:
        if not raw or any(stop in raw for stop in self.stops):
            return None
        value = _decode(raw)
        if value is None or (not self.slashes and ("/" in value or "\\" in value)):
            return None
        return None if self.rooted and value[0] in "/\\" else value


_Atoms: TypeAlias = list[str | _Slot]


class _Layout(NamedTuple):
    """What a URI is made of: `rest` takes what the atoms on both sides of it leave."""

    before: _Atoms
    rest: _Slot | None
    after: _Atoms
    absent: str = ""
    """The exploded variable that is left out, and so is empty."""


class UriTemplate:
    """A template that can be expanded and matched. `names` are its variables, in order."""

    __slots__ = ("_fixed", "_fragment", "_layouts", "_parts", "_query", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = parse_template(text)
        self.names = _names(self._parts)
        head, queries, fragment = _split(self._parts)
        self._layouts = _layouts(head)
        self._query = {variable.name: variable.explode for query in queries for variable in query.variables}
        self._fixed, self._fragment = _count_literal_pairs(head), fragment

    @classmethod
    def parse(cls, text: str) -> UriTemplate:
        """Raises ValueError, with a text for the author, when the template is malformed or cannot be matched."""
        return cls(text)

    def expand(self, values: Mapping[str, Any]) -> str:
        """The URI for these values. A value that is missing or None adds nothing."""
        return expand_template(self._parts, values)

    def match_uri(self, uri: str) -> dict[str, Value] | None:
        """The variables' values in `uri`, percent-decoded once, or None. Linear in `uri`'s length; never raises."""
        if len(uri) > MAX_URI:
            return None
        try:
            return self._match(_normal(uri))
        except UnicodeError:
            return None

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    def _match(self, uri: str) -> dict[str, Value] | None:
        fragment = query = dict[str, Value]()
        if self._fragment is not None:
            uri, _, text = uri.partition("#")
            fragment = _parse_values({self._fragment: text} if text else {})
        if self._query:
            uri, pairs = _split_query(uri, self._fixed)
            query = _read_query(self._query, pairs)
        if query is None or fragment is None:
            return None
        for layout in self._layouts:
            if (head := _scan(layout, uri)) is not None:
                return {**head, **query, **fragment}
        return None


def _names(parts: Sequence[Part]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for part in parts:
        for variable in () if isinstance(part, str) else part.variables:
            if variable.name in names:
                raise ValueError(f"the variable {variable.name!r} is used twice; give each its own name")
            names[variable.name] = None
    return tuple(names)


def _split(parts: Sequence[Part]) -> tuple[list[Part], list[Expression], _Slot | None]:
    """The parts matched in order, the query expressions behind them, and the fragment at the very end."""
    head: list[Part] = []
    tail: list[Expression] = []
    place = 0
    for part in parts:
        before, place = place, 0 if isinstance(part, str) else _PLACES.get(part.operator, 0)
        if place < before or (place == before and place in (_PLACES["?"], _PLACES["#"])):
            raise ValueError("one {?…}, then any {&…}, then one {#…} end a template; nothing else may follow them")
        if isinstance(part, str) or not place:
            head.append(part)
        else:
            tail.append(part)
    fragment = _fragment(tail.pop()) if tail and tail[-1].operator == "#" else None
    literals = _literals(head)
    if fragment and "#" in literals:
        raise ValueError("{#…} begins a fragment, but a '#' before it already did")
    if tail and (tail[0].operator == "?") == ("?" in literals):
        raise ValueError("{?…} begins a query; {&…} continues one that a literal '?' or a {?…} began")
    return head, tail, fragment


def _literals(head: Sequence[Part]) -> str:
    return "".join(part for part in head if isinstance(part, str))


def _fragment(expression: Expression) -> _Slot:
    variable, *others = expression.variables
    if others:
        raise _two_open(variable.name, others[0].name)
    return _Slot(variable.name, items="," if variable.explode else "")


def _count_literal_pairs(head: Sequence[Part]) -> int:
    """How many query pairs the literals spell out, before those that may come in any order."""
    _, mark, query = _literals(head).partition("?")
    return query.count("&") + 1 if mark else 0


def _layouts(head: Sequence[Part]) -> list[_Layout]:
    """What to try: with everything, then without the exploded variable."""
    variables = [variable for part in head if not isinstance(part, str) for variable in part.variables]
    absent = [variable.name for variable in variables if variable.explode]
    return [_layout(_atoms(head, leave_out=name), name) for name in ("", *absent)]


def _layout(atoms: _Atoms, absent: str) -> _Layout:
    slots = [(index, atom) for index, atom in enumerate(atoms) if isinstance(atom, _Slot)]
    if not slots:
        return _Layout(atoms, None, [], absent)
    index, rest = next((slot for slot in slots if slot[1].open), slots[-1])
    return _Layout(atoms[:index], rest, atoms[index + 1 :], absent)


def _atoms(head: Sequence[Part], leave_out: str = "") -> _Atoms:
    """Literals and slots in turn. Raises ValueError if it would be unclear where a value ends."""
    atoms: _Atoms = [""]
    in_query = False
    for part in head:
        if isinstance(part, str):
            in_query = in_query or "?" in part
            _append_literal(atoms, part)
            continue
        operator = OPERATORS[part.operator]
        lead = operator.lead
        for variable in part.variables:
            if variable.name == leave_out:
                continue
            _append_literal(atoms, lead + (f"{variable.name}=" if operator.named and not variable.explode else ""))
            _append_slot(atoms, part.operator, variable, in_query)
            lead = operator.separator
    open_names = [atom.name for atom in atoms if isinstance(atom, _Slot) and atom.open]
    if len(open_names) > 1:
        raise _two_open(*open_names[:2])
    return atoms


def _append_literal(atoms: _Atoms, text: str) -> None:
    last = atoms[-1]
    if isinstance(last, str):
        atoms[-1] = last + text
    elif text:
        atoms.append(text)


def _append_slot(atoms: _Atoms, operator: str, variable: Variable, in_query: bool) -> None:
    before, name = atoms[-1], variable.name
    if not isinstance(before, str):
        raise ValueError(
            f"{before.name!r} and {name!r} stand side by side, so it is unclear where one ends; "
            "put a literal such as '/' between them"
        )
    rules = OPERATORS[operator]
    wide = in_query or operator == "+" or (variable.explode and not operator)
    atoms.append(
        _Slot(
            name,
            open=variable.explode or operator == "+",
            stops="?#&" if in_query else "?#" if wide else "/?#",
            slashes=wide,
            rooted=before.endswith("/") and before != "file://",
            items=rules.separator if variable.explode else "",
            label=f"{name}=" if variable.explode and rules.named else "",
        )
    )


def _two_open(first: str, second: str) -> ValueError:
    return ValueError(
        f"{first!r} and {second!r} may both take any number of segments, so it is unclear which one gets the extra "
        "ones; make one of them a plain {var}"
    )


def _normal(uri: str) -> str:
    """ASCII with upper-case escapes. Raises UnicodeError for text that is no UTF-8 or has broken escapes."""
    if not uri.isascii():
        uri = _NOT_ASCII.sub(lambda run: quote(run[0]), uri)
    if "%" in uri:
        if BROKEN_ESCAPE.search(uri):
            raise UnicodeError("broken escape")
        unquote_to_bytes(uri).decode()
        uri = _LOWER_ESCAPE.sub(lambda escape: escape[0].upper(), uri)
    return uri


def _scan(layout: _Layout, uri: str) -> dict[str, Value] | None:
    """Find the literals from both ends towards `rest`, each at the nearest place.

    The nearest place is never wrong: a value that ran past it would contain the literal, and what stops one value
    stops its neighbours. So nothing is tried twice.
    """
    texts: dict[_Slot, str] = {}
    start = _scan_forward(layout.before, uri, texts)
    end = None if start is None else _scan_backward(layout.after, uri, start, texts)
    if end is None:
        return None
    if layout.rest is not None:
        texts[layout.rest] = uri[start:end]
    elif start != end:
        return None
    found = _parse_values(texts)
    return {**found, layout.absent: []} if found is not None and layout.absent else found


def _scan_forward(atoms: _Atoms, uri: str, texts: dict[_Slot, str]) -> int | None:
    """Where the atoms end in `uri`, each slot running to the first place of the literal behind it."""
    start, slot = 0, None
    for atom in atoms:
        if isinstance(atom, _Slot):
            slot = atom
            continue
        at = uri.find(atom, start + 1) if slot else (start if uri.startswith(atom, start) else -1)
        if at < 0:
            return None
        if slot:
            texts[slot], slot = uri[start:at], None
        start = at + len(atom)
    return start


def _scan_backward(atoms: _Atoms, uri: str, start: int, texts: dict[_Slot, str]) -> int | None:
    """Where the atoms begin, none before `start`, each slot running to the last place of the literal before it."""
    end, slot = len(uri), None
    for atom in reversed(atoms):
        if isinstance(atom, _Slot):
            slot = atom
            continue
        at = uri.rfind(atom, start, end - 1) if slot else (end - len(atom) if uri.endswith(atom, start, end) else -1)
        if at < 0:
            return None
        if slot:
            texts[slot], slot = uri[at + len(atom) : end], None
        end = at
    return end


def _parse_values(texts: Mapping[_Slot, str]) -> dict[str, Value] | None:
    values = {slot.name: slot.parse_value(text) for slot, text in texts.items()}
    return None if None in values.values() else cast("dict[str, Value]", values)


def _split_query(uri: str, fixed: int) -> tuple[str, list[str]]:
    """The part of `uri` matched in order, which ends behind the `fixed` first query pairs, and the other pairs."""
    head, mark, query = uri.partition("?")
    pairs = query.split("&") if mark else []
    return (f"{head}?{'&'.join(pairs[:fixed])}" if fixed else head), pairs[fixed:]


def _read_query(wanted: Mapping[str, bool], pairs: Iterable[str]) -> dict[str, Value] | None:
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, raw = pair.partition("=")
        if "#" in pair:
            return None
        if name not in wanted:
            continue
        value = _decode(raw)
        if value is None or (name in found and not wanted[name]):
            return None
        found.setdefault(name, []).append(value)
    return {name: values if wanted[name] else values[0] for name, values in found.items()}


def _decode(raw: str) -> str | None:
    """The value, decoded once; None if it is unsafe to hand to a function (NUL, or a `..` segment)."""
    value = unquote_to_bytes(raw).decode()
    unsafe = "\0" in value or (".." in value and ".." in value.replace("\\", "/").split("/"))
    return None if unsafe else value


# -- RFC 6570 URI templates: their parts, and expansion (§3.2).
#
# All of RFC 6570 except prefixes (`{var:3}`). They are refused when parsed, because a value that was cut short cannot
# be matched back. This is our own code because matching needs the parts, and the libraries do not expose them.


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


def parse_template(text: str) -> list[Part]:
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


def expand_template(parts: Sequence[Part], values: Mapping[str, Any]) -> str:
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

    def encode_value(value: Any) -> str:
        return _encode(str(value).lower() if isinstance(value, bool) else str(value), reserved=operator.reserved)

    def format_pair(name: str, text: str) -> str:
        return f"{name}={text}" if text else f"{name}{operator.if_empty}"

    if value is None:
        return []
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        pairs = [(encode_value(key), encode_value(item)) for key, item in mapping.items() if item is not None]
        if variable.explode:
            return [format_pair(*pair) if operator.named else "=".join(pair) for pair in pairs]
        texts = [text for pair in pairs for text in pair]
    elif isinstance(value, list | tuple):
        texts = [encode_value(item) for item in cast("Sequence[Any]", value) if item is not None]
        if variable.explode:
            return [format_pair(variable.name, text) if operator.named else text for text in texts]
    else:
        texts = [encode_value(value)]
    if not texts:
        return []
    text = ",".join(texts)
    return [format_pair(variable.name, text) if operator.named else text]


def _encode(text: str, *, reserved: bool) -> str:
    if not reserved:
        return quote(text, safe="")
    # Odd pieces are escapes already, which reserved expansion keeps.
    pieces = _ESCAPE.split(text)
    return "".join(piece.upper() if odd % 2 else quote(piece, safe=_RESERVED) for odd, piece in enumerate(pieces))
