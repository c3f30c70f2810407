"""Layer 0: is this text small, shallow and honestly encoded enough to be parsed at all? Nothing is parsed here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from defserve.base.hidden_characters import HIDDEN_RANGES
from defserve.guard.verdict import Violation


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """How much source a level parses. Strict takes less, because RestrictedPython costs more per token than `ast`."""

    max_bytes: int
    tokens: int
    brackets: int
    depth: int
    """Of the syntax tree."""
    identifier: int = 200


STANDARD = SourceBounds(max_bytes=100_000, tokens=20_000, brackets=100, depth=200)
STRICT = SourceBounds(max_bytes=10_000, tokens=2_500, brackets=60, depth=100)

# As CPython splits: every character past ASCII may be part of a name.
# An unclosed string runs on, as it does for CPython, so that no text is scanned twice.
TOKEN = re.compile(
    r"(?P<string>(?<![0-9A-Za-z_])(?P<prefix>[A-Za-z]{0,2})"
    r"(?:'''(?:[^'\\]|\\.|'(?!''))*(?:''')?|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*(?:\"\"\")?"
    r"|'(?:[^'\\\r\n]|\\.)*'?|\"(?:[^\"\\\r\n]|\\.)*\"?))"
    r"|(?P<comment>\#[^\r\n]*)"
    r"|(?P<word>[0-9A-Za-z_\x80-\U0010ffff]+)"
    r"|(?P<mark>[^\s0-9A-Za-z_])",
    re.DOTALL,
)
_COOKIE = re.compile(r"coding[:=][ \t]*([-\w.]+)")
_LINE_END = re.compile(r"\r\n|\r|\n")
_BIDI = re.compile(f"[{HIDDEN_RANGES['direction control']}]")
_UTF8 = frozenset({"utf8", "utf_8"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def decode(source: str | bytes, max_bytes: int) -> str | Violation:
    """The text CPython would read from these bytes, or why it is refused."""
    try:
        data = source.encode() if isinstance(source, str) else bytes(source)
        if len(data) > max_bytes:
            return Violation("size", f"Code too large: {len(data)} bytes, at most {max_bytes} are allowed")
        text = data.decode()
    except UnicodeError:
        return Violation("encoding", "Blocked encoding: the code is not valid UTF-8")
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        return Violation("encoding", "Blocked encoding: the code contains a NUL character")
    return _honest(text)


def _honest(text: str) -> str | Violation:
    # PEP 263: text that declares another encoding reads differently once it is saved and run as a file.
    for number, line in enumerate(_LINE_END.split(text, maxsplit=2)[:2], 1):
        cookie = _COOKIE.search(line) if line.lstrip(" \t\f").startswith("#") else None
        if cookie and cookie[1].lower().replace("-", "_") not in _UTF8:
            return Violation("encoding", f"Blocked encoding: {cookie[1]!r}; only utf-8 is allowed", number)
    if bidi := _BIDI.search(text):
        line = text.count("\n", 0, bidi.start()) + 1
        return Violation("encoding", "Blocked encoding: the code contains a bidirectional control character", line)
    return text


def measure(text: str, bounds: SourceBounds) -> Violation | None:
    """Why the text is too much to parse, if it is."""
    count = depth = 0
    for token in TOKEN.finditer(text):
        if token.lastgroup == "comment":
            continue
        count += 1
        if token.lastgroup == "string":
            count += 3 * token[0].count("{") if "f" in token["prefix"].lower() else 0
        elif token.lastgroup == "mark":
            depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
            if depth > bounds.brackets:
                return Violation("nesting", f"Code nested too deeply: at most {bounds.brackets} brackets are allowed")
        elif token.lastgroup == "word" and token.end() - token.start() > bounds.identifier:
            return Violation("size", f"Name or number too long: at most {bounds.identifier} characters are allowed")
        if count > bounds.tokens:
            return Violation("size", f"Code too large: at most {bounds.tokens} tokens are allowed")
    return None


def without_text(text: str) -> str:
    """The code without comments and plain strings, with single spaces. f-strings stay, because they hold code."""

    def keep(token: re.Match[str]) -> str:
        if token["comment"] is not None:
            return " "
        if token["string"] is not None and "f" not in token["prefix"].lower():
            return "''"
        return token[0]

    return " ".join(TOKEN.sub(keep, text).split())
