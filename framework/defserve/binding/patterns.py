"""Patterns that are not ours, matched in linear time. Nothing else in the package compiles such a pattern.

How it works. A pattern of a JSON Schema is written in ECMAScript's dialect. It is parsed here, translated for Rust's
`regex` (pydantic-core has it), and matched there: the time grows with the length of the text times the size of the
pattern, never faster. That engine cannot look around and has no back-references; such a pattern is `NonLinearPattern`.
What happens then depends on whose pattern it is: an author's is refused when it is declared, an imported one stays
published and is not enforced.

The translation keeps ECMAScript's meaning: `\\d` and `\\w` are ASCII, `\\s` is its own set, `$` is the end of the text
(never before a last newline), `.` is no line terminator, and a match may begin anywhere.

An author's `Field(pattern="…")` is matched by the same engine in its own dialect, as pydantic does everywhere. Python's
engine, which backtracks (`re.compile`, `regex_engine="python-re"`), never meets a caller's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_PATTERN_LENGTH: Final = 4_096
MAX_PATTERN_SIZE: Final = 5_000
"""Positions of a pattern with its counted repetitions written out: `[ab]{3}` has three."""
MAX_MATCH_STEPS: Final = 20_000_000
"""Positions times characters: what one match may cost, some 0.3 s of a core for the worst pattern and text."""
MAX_PATTERN_DEPTH: Final = 100


class PatternProblem(ValueError):
    """A pattern that cannot be used. `reason` completes the sentence "the pattern …"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NonLinearPattern(PatternProblem):
    """A pattern that may be right, but that no linear engine can run, or that is too large for ours."""


class TextTooLong(ValueError):
    """A text that is too long to be matched by this pattern."""


class LinearPattern:
    """A pattern of JSON Schema, ready to be searched for in a text that anybody sent."""

    __slots__ = ("source", "size", "_matches")

    def __init__(self, source: str, size: int, matches: Callable[[Any], bool]) -> None:
        self.source, self.size, self._matches = source, size, matches

    @property
    def max_length(self) -> int:
        """How many characters a text may have."""
        return MAX_MATCH_STEPS // self.size

    def search(self, text: str) -> bool:
        """Whether the pattern is found in a text. Raises TextTooLong."""
        if len(text) > self.max_length:
            raise TextTooLong(f"has more than the {self.max_length} characters that its pattern is matched against")
        return self._matches(text)


def compile_pattern(pattern: str) -> LinearPattern:
    """A pattern of JSON Schema. Raises PatternProblem if it is wrong, NonLinearPattern if it cannot be run."""
    compiled = _compile_or_explain(pattern)
    if isinstance(compiled, PatternProblem):
        raise type(compiled)(compiled.reason)  # a new one: what is raised again keeps its old tracebacks
    return compiled


@lru_cache(maxsize=128)
def _compile_or_explain(pattern: str) -> LinearPattern | PatternProblem:
    """The compiled pattern, or why there is none. That is remembered too: a schema may try one for every value."""
    try:
        translated = _Translation(pattern).translate()
    except PatternProblem as problem:
        return type(problem)(problem.reason)
    schema = core_schema.str_schema(pattern=translated.text, regex_engine="rust-regex", strict=True)
    try:
        matches = SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = str(error).rstrip().rpartition("\n")[2].removeprefix("error: ")
        return NonLinearPattern(f"cannot be run: {reason}")
    return LinearPattern(pattern, translated.size, matches)


def is_pattern_found(pattern: str, text: str) -> bool:
    """Whether a pattern of JSON Schema is found in a text. Raises PatternProblem and TextTooLong."""
    return compile_pattern(pattern).search(text)


def find_pattern_problem(pattern: str) -> PatternProblem | None:
    """Why a pattern of JSON Schema cannot be used here, or None."""
    try:
        compile_pattern(pattern)
    except PatternProblem as problem:
        return problem
    return None


class _Part(NamedTuple):
    """A piece of a pattern in Rust's dialect, and how many positions it has."""

    text: str
    size: int
    can_repeat: bool = True


_DIGIT: Final = "0-9"
_WORD: Final = "0-9A-Z_a-z"
_SPACE: Final = r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_CLASSES: Final = {
    "d": f"[{_DIGIT}]",
    "D": f"[^{_DIGIT}]",
    "w": f"[{_WORD}]",
    "W": f"[^{_WORD}]",
    "s": f"[{_SPACE}]",
    "S": f"[^{_SPACE}]",
}
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_LINE: Final = r"[^\x{a}\x{d}\x{2028}\x{2029}]"
_ANY, _NONE = r"[\x{0}-\x{10ffff}]", r"[^\x{0}-\x{10ffff}]"
# A character beyond ASCII takes several bytes, and the engine a position for each of them.
_WIDE: Final = 4
_COUNT: Final = re.compile(r"\{(\d{1,9})(?:(,)(\d{0,9}))?\}")
_PROPERTY: Final = re.compile(r"[pP]\{[A-Za-z0-9_]{1,40}(?:=[A-Za-z0-9_]{1,40})?\}")
_GROUP_NAME: Final = re.compile(r"\?<[A-Za-z_$][\w$]{0,80}>")
_GROUP_REFERENCE: Final = re.compile(r"k<[^>]{1,80}>")
_LOOKS: Final = ("?=", "?!", "?<=", "?<!")


class _Translation:
    """One pattern, read from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._depth = pattern, 0, 0
        # A pattern that is merely not linear is read to its end: it may be wrong as well.
        self._not_linear = ""

    def translate(self) -> _Part:
        if len(self._pattern) > MAX_PATTERN_LENGTH:
            raise NonLinearPattern(f"has more than {MAX_PATTERN_LENGTH} characters")
        made = self._alternatives()
        if self._at < len(self._pattern):
            self._fail("has a ) without its (")
        if self._not_linear:
            raise NonLinearPattern(self._not_linear)
        if made.size > MAX_PATTERN_SIZE:
            raise NonLinearPattern(
                f"has {made.size} positions with its repetitions written out, more than {MAX_PATTERN_SIZE}"
            )
        return made._replace(size=max(made.size, 1))

    def _fail(self, reason: str) -> NoReturn:
        raise PatternProblem(reason)

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take_letter(self) -> str:
        if self._at >= len(self._pattern):
            self._fail("ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._peek("|"):
            self._at += 1
            parts.append(self._sequence())
        return _Part("|".join(part.text for part in parts), sum(part.size for part in parts))

    def _sequence(self) -> _Part:
        texts: list[str] = []
        size = 0
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            part = self._parse_quantifier(self._atom())
            texts.append(part.text)
            size += part.size
        return _Part("".join(texts), size)

    def _atom(self) -> _Part:
        letter = self._take_letter()
        if letter == "(":
            return self._group()
        if letter == "[":
            return self._class()
        if letter == "\\":
            return self._escape()
        if letter in "^$":
            return _Part(letter, 1, can_repeat=False)
        if letter == ".":
            return _Part(_LINE, _WIDE)
        if letter in "*+?" or (letter == "{" and _COUNT.match(self._pattern, self._at - 1)):
            self._fail(f"repeats nothing with {letter}")
        return self._literal(self._join_surrogates(letter))

    def _parse_quantifier(self, part: _Part) -> _Part:
        if self._at >= len(self._pattern):
            return part
        letter = self._pattern[self._at]
        if letter in "*+?":
            self._at += 1
            text, copies = letter, 1
        elif letter == "{" and (found := _COUNT.match(self._pattern, self._at)):
            self._at = found.end()
            least, most = int(found[1]), int(found[3] or found[1])
            if most < least:
                self._fail(f"repeats from {least} to {most}")
            text, copies = found[0], most + (found[2] is not None and not found[3])
        else:
            return part
        if not part.can_repeat:
            self._fail("repeats a place, such as ^, $ or \\b")
        if self._peek("?"):
            self._at += 1  # which match is the shortest does not matter: only whether there is one
        return _Part(f"(?:{part.text}){text}", part.size * copies + 1)

    def _group(self) -> _Part:
        self._depth += 1
        if self._depth > MAX_PATTERN_DEPTH:
            raise NonLinearPattern(f"nests groups deeper than {MAX_PATTERN_DEPTH}")
        looks = next((mark for mark in _LOOKS if self._peek(mark)), None)
        if looks is not None:
            self._at += len(looks)
            self._not_linear = f"looks around with ({looks}"
        elif self._peek("?:"):
            self._at += 2
        elif name := _GROUP_NAME.match(self._pattern, self._at):
            self._at = name.end()
        elif self._peek("?"):
            self._fail(f"has a group ({self._pattern[self._at : self._at + 2]} that JSON Schema does not know")
        inner = self._alternatives()
        if not self._peek(")"):
            self._fail("has a ( without its )")
        self._at += 1
        self._depth -= 1
        return _Part(f"(?:{inner.text})", inner.size)

    def _escape(self) -> _Part:
        letter = self._pattern[self._at : self._at + 1]
        if letter in ("b", "B"):
            self._at += 1
            return _Part(rf"(?-u:\{letter})", 1, can_repeat=False)
        if letter.isdecimal() and letter != "0":
            self._at += 1
            self._not_linear = f"refers back to a group with \\{letter}"
            return _Part("", 1)
        if letter == "k" and (name := _GROUP_REFERENCE.match(self._pattern, self._at)):
            self._at = name.end()
            self._not_linear = "refers back to a group by its name"
            return _Part("", 1)
        known = self._parse_class_escape()
        return known if known is not None else self._literal(self._character())

    def _parse_class_escape(self) -> _Part | None:
        """`\\d`, `\\p{L}` and the like, after the backslash."""
        letter = self._pattern[self._at : self._at + 1]
        if letter in _CLASSES:
            self._at += 1
            return _Part(_CLASSES[letter], 1 if letter in "dw" else _WIDE)
        if found := _PROPERTY.match(self._pattern, self._at):
            self._at = found.end()
            return _Part("\\" + found[0], 2 * _WIDE)
        return None

    def _character(self) -> int:
        """The code point of an escape, after the backslash."""
        letter = self._take_letter()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "0" and not self._pattern[self._at : self._at + 1].isdecimal():
            return 0
        if letter == "c":
            control = self._take_letter()
            if not (control.isascii() and control.isalpha()):
                self._fail(f"has \\c{control}, which is no control character")
            return ord(control) % 32
        if letter == "x":
            return self._hexadecimal(2)
        if letter == "u":
            return self._unicode()
        if letter.isalnum() or letter == "_":
            self._fail(f"has \\{letter}, which JSON Schema does not know")
        return self._join_surrogates(letter)

    def _unicode(self) -> int:
        if self._peek("{"):
            end = self._pattern.find("}", self._at, self._at + 10)
            digits = self._pattern[self._at + 1 : max(end, 0)]
            if not digits or not _is_hexadecimal(digits) or int(digits, 16) > 0x10FFFF:
                self._fail("has a \\u{…} that is no character")
            self._at = end + 1
            return int(digits, 16)
        first = self._hexadecimal(4)
        if 0xD800 <= first < 0xDC00 and self._peek("\\u"):
            before, self._at = self._at, self._at + 2
            second = self._hexadecimal(4)
            if 0xDC00 <= second < 0xE000:
                return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            self._at = before
        return first

    def _hexadecimal(self, count: int) -> int:
        digits = self._pattern[self._at : self._at + count]
        if len(digits) < count or not _is_hexadecimal(digits):
            self._fail(f"needs {count} hexadecimal digits after \\x or \\u")
        self._at += count
        return int(digits, 16)

    def _join_surrogates(self, letter: str) -> int:
        """A character that JSON may have brought as two halves."""
        first = ord(letter)
        second = ord(self._pattern[self._at]) if self._at < len(self._pattern) else 0
        if 0xD800 <= first < 0xDC00 <= second < 0xE000:
            self._at += 1
            return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
        return first

    def _literal(self, code: int) -> _Part:
        return _Part(self._format_character(code), 1 if code < 128 else _WIDE)

    def _format_character(self, code: int) -> str:
        if 0xD800 <= code < 0xE000:
            self._not_linear = "names half a character (a lone surrogate)"
            return ""
        letter = chr(code)
        return letter if letter.isascii() and letter.isalnum() else rf"\x{{{code:x}}}"

    def _class(self) -> _Part:
        negated = self._peek("^")
        self._at += negated
        items: list[str] = []
        is_wide = negated
        while not self._peek("]"):
            low = self._class_item()
            if self._peek("-") and not self._pattern.startswith("-]", self._at):
                self._at += 1
                high = self._class_item()
                if isinstance(low, int) and isinstance(high, int):
                    if high < low:
                        self._fail("has a range that ends before it begins")
                    items.append(f"{self._format_character(low)}-{self._format_character(high)}")
                    is_wide = is_wide or high > 127
                    continue
                ends: list[int | _Part] = [low, ord("-"), high]
            else:
                ends = [low]
            for end in ends:
                is_wide = is_wide or (end.size > 1 if isinstance(end, _Part) else end > 127)
                items.append(end.text if isinstance(end, _Part) else self._format_character(end))
        self._at += 1
        if not items:
            return _Part(_ANY if negated else _NONE, _WIDE)
        return _Part(f"[{'^' * negated}{''.join(items)}]", _WIDE if is_wide else 1)

    def _class_item(self) -> int | _Part:
        """A code point, or a set that stands inside the brackets."""
        letter = self._take_letter()
        if letter != "\\":
            return self._join_surrogates(letter)
        if self._peek("b"):
            self._at += 1
            return 8
        return self._parse_class_escape() or self._character()


def _is_hexadecimal(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)


# What follows is about patterns in an author's annotations, in the dialect of pydantic's engine.

BY_FUNCTION: Final = (
    'check it in a function: Annotated[str, AfterValidator(check)], or write it as pattern="…" without look-around'
)


def find_annotation_pattern_problem(pattern: Any, engine: str | None) -> tuple[str, str] | None:
    """The problem and its fix, if an annotation's pattern must not meet a caller's text."""
    text = pattern if isinstance(pattern, str) else str(getattr(pattern, "pattern", pattern))
    shown = repr(text[:200])
    if not isinstance(pattern, str) or engine == "python-re":
        how = f"re.compile({shown})" if not isinstance(pattern, str) else f'{shown} with regex_engine="python-re"'
        return f"its pattern {how} is matched by Python, which a text can keep busy for ever", _fix(text)
    if (size := measure_pattern(pattern)) > MAX_PATTERN_SIZE:
        return f"its pattern {shown} has {size} positions, more than {MAX_PATTERN_SIZE}", "repeat less in it"
    return None


def compute_max_text_length(pattern: str) -> int:
    """How many characters a text may have that an annotation's pattern is matched against."""
    return MAX_MATCH_STEPS // measure_pattern(pattern)


@lru_cache(maxsize=512)
def measure_pattern(pattern: str) -> int:
    """The positions of a pattern in pydantic's dialect; more than there are if it is not JSON Schema's as well."""
    try:
        return _Translation(pattern).translate().size
    except PatternProblem:
        size = len(pattern) or 1
        for found in _COUNT.finditer(pattern):
            size *= max(int(found[3] or found[1]), 1)
            if size > MAX_MATCH_STEPS:
                return MAX_MATCH_STEPS
        return size


def _fix(pattern: str) -> str:
    """What to write instead of a pattern that Python matches."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return BY_FUNCTION
    quoted = f'r"{pattern}"' if '"' not in pattern else repr(pattern)
    return f"give the text: pattern={quoted}"


# What pydantic says: the pattern, a line below it that points at the place, and the reason.
_REFUSAL = re.compile(r"regex parse error:\n    (?P<pattern>.*)\n *\^+\nerror: (?P<reason>.*)")


def explain_pydantic_pattern_error(said: str) -> tuple[str, str] | None:
    """The problem and its fix, if pydantic's error is about a pattern. Its engine knows less than Python's."""
    if "exceeds size limit" in said:
        return "its pattern is too large for the engine", "repeat less in it"
    if "regex parse error" not in said:
        return None
    found = _REFUSAL.search(said)
    if found is None:  # a pattern of several lines
        return "its pattern cannot be used", f"correct it, or {BY_FUNCTION}"
    pattern, reason = found["pattern"], found["reason"]
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        fix = "correct the pattern"
    else:
        fix = BY_FUNCTION
    return f"its pattern {pattern!r} cannot be used: {reason}", fix
