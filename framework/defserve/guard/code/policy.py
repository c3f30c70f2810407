"""What one call of the judge allows: the author's lists, and the tables of the level. Below, layer 0: the gate."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from defserve.base.hidden_characters import HIDDEN_CHARACTER_RANGES
from defserve.guard.code import allowed_names
from defserve.guard.code.allowed_names import CodeLevel
from defserve.guard.verdict import Violation


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """The lists and bounds of one call, ready to be asked."""

    level: CodeLevel
    bounds: SourceBounds
    max_bytes: int
    allow: frozenset[str] | None
    trust: frozenset[str]
    blocked_modules: frozenset[str] = frozenset()
    blocked_names: frozenset[str] = frozenset()
    """Built-ins of `block`, written `name(` there."""
    blocked_dotted: frozenset[str] = frozenset()
    blocked_texts: tuple[str, ...] = ()

    @classmethod
    def from_options(
        cls,
        level: CodeLevel,
        allow: Collection[str] | None,
        block: Collection[str] | None,
        max_bytes: int | None,
        trust: Collection[str],
    ) -> CodePolicy:
        bounds = STRICT if level in ("strict", "readonly") else STANDARD
        modules, calls, dotted, texts = _sort(block or ())
        return cls(
            level,
            bounds,
            bounds.max_bytes if max_bytes is None else max_bytes,
            None if allow is None else frozenset(allow),
            frozenset(trust),
            modules,
            calls,
            dotted,
            texts,
        )

    @property
    def strict(self) -> bool:
        """Readonly is strict and more."""
        return self.level in ("strict", "readonly")

    def is_trusted(self, module: str) -> bool:
        return _covers(self.trust, module)

    def may_import(self, module: str) -> bool:
        if _covers(self.blocked_modules, module):
            return False
        if self.is_trusted(module):
            return True
        if self.allow is not None and not _covers(self.allow, module):
            return module == "__future__"
        if allowed_names.is_dangerous_module(module, self.strict):
            return False
        # Without a table, a strict program would get the raw module.
        return not self.strict or allowed_names.find_exports(module, self.strict) is not None

    def may_import_from(self, module: str, name: str) -> bool:
        """Whether `from module import name` is allowed. Some dangerous modules give out single names."""
        dotted = f"{module}.{name}"
        if _covers(self.blocked_modules, module) or dotted in self.blocked_modules or self.blocks_dotted_name(dotted):
            return False
        if self.is_trusted(module):
            return True
        if self.allow is not None and not _covers(self.allow, module) and module != "__future__":
            return False
        if name == "*":
            return module in allowed_names.STAR_IMPORT_MODULES and not self.strict
        if allowed_names.find_exports(dotted, self.strict) is not None:
            return self.may_import(dotted)
        if (table := allowed_names.find_exports(module, self.strict)) is not None:
            return name in table
        return self.may_import(module) and name not in allowed_names.BLOCKED_MODULE_MEMBERS and not name.startswith("_")

    def blocks_dotted_name(self, dotted: str) -> bool:
        return _covers(self.blocked_dotted, dotted)

    def hints(self) -> dict[str, Any]:
        """What a refused peer may want to know (§7.4)."""
        allowed = self.allow
        if allowed is None:
            allowed = frozenset(
                allowed_names.SAFE_MODULE_EXPORTS
                if self.strict
                else {**allowed_names.SAFE_MODULE_EXPORTS, **allowed_names.STANDARD_LEVEL_EXPORTS}
            )
        blocked = self.blocked_modules | (allowed_names.DANGEROUS_MODULES - self.trust)
        return {
            "blocked_imports": sorted(blocked),
            "allowed_imports": sorted(m for m in allowed | self.trust if self.may_import(m)),
            "max_code_size_bytes": self.max_bytes,
        }

    def make_declaration(self) -> dict[str, Any]:
        """The lists and the size that are enforced, as a tool declares them (§7.3)."""
        if self.level == "unrestricted":
            return {"max_code_size_bytes": self.max_bytes}
        builtins = allowed_names.STRICT_BUILTINS if self.strict else allowed_names.BLOCKED_BUILTINS
        calls = {f"{name}(" for name in builtins | self.blocked_names}
        patterns = calls | self.blocked_dotted | {*self.blocked_texts}
        found: dict[str, Any] = {"max_code_size_bytes": self.max_bytes, "blocked_patterns": sorted(patterns)}
        blocked = self.blocked_modules
        if self.strict or self.allow is not None:
            allowed = frozenset(allowed_names.SAFE_MODULE_EXPORTS) if self.allow is None else self.allow
            found["allowed_imports"] = sorted(m for m in allowed | self.trust if self.may_import(m))
        else:
            known = (m for m in allowed_names.DANGEROUS_MODULES | sys.stdlib_module_names if not m.startswith("_"))
            blocked |= {m for m in known if not self.may_import(m)}
        if blocked:
            found["blocked_imports"] = sorted(blocked)
        return found


def _covers(listed: frozenset[str], dotted: str) -> bool:
    """Whether a set of dotted names holds this one or something above it."""
    while dotted:
        if dotted in listed:
            return True
        dotted = dotted.rpartition(".")[0]
    return False


def _sort(block: Iterable[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str], tuple[str, ...]]:
    """The entries of `block` by kind: modules, built-ins, dotted names, texts."""
    modules: set[str] = set()
    calls: set[str] = set()
    dotted: set[str] = set()
    texts: list[str] = []
    for entry in block:
        bare = entry.removesuffix("(").strip()
        parts = bare.split(".")
        if not all(p.isidentifier() and not keyword.iskeyword(p) for p in parts):
            texts.append(" ".join(entry.split()))
        elif len(parts) > 1:
            dotted.add(bare)
            modules.add(bare)
        elif bare != entry.strip():
            calls.add(bare)
        else:
            modules.add(bare)
    return frozenset(modules), frozenset(calls), frozenset(dotted), tuple(text for text in texts if text)


# -- Layer 0: is this text small, shallow and honestly encoded enough to be parsed at all? Nothing is parsed here.


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
_BIDI = re.compile(f"[{HIDDEN_CHARACTER_RANGES['direction control']}]")
_UTF8 = frozenset({"utf8", "utf_8"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def decode_source(source: str | bytes, max_bytes: int) -> str | Violation:
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


def find_exceeded_bound(text: str, bounds: SourceBounds) -> Violation | None:
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


def strip_comments_and_strings(text: str) -> str:
    """The code without comments and plain strings, with single spaces. f-strings stay, because they hold code."""

    def reduce_token(token: re.Match[str]) -> str:
        if token["comment"] is not None:
            return " "
        if token["string"] is not None and "f" not in token["prefix"].lower():
            return "''"
        return token[0]

    return " ".join(TOKEN.sub(reduce_token, text).split())
