"""What one call of the judge allows: the author's lists, and the tables of the level."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from defserve.guard.code import imports, names
from defserve.guard.code.gate import STANDARD, STRICT, SourceBounds
from defserve.guard.code.levels import CodeLevel


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
    def of(
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

    def trusts(self, module: str) -> bool:
        return _covers(self.trust, module)

    def may_import(self, module: str) -> bool:
        if _covers(self.blocked_modules, module):
            return False
        if self.trusts(module):
            return True
        if self.allow is not None and not _covers(self.allow, module):
            return module == "__future__"
        if imports.dangerous(module, self.strict):
            return False
        # Without a table, a strict program would get the raw module.
        return not self.strict or imports.exports(module, self.strict) is not None

    def may_import_from(self, module: str, name: str) -> bool:
        """Whether `from module import name` is allowed. Some dangerous modules give out single names."""
        dotted = f"{module}.{name}"
        if _covers(self.blocked_modules, module) or dotted in self.blocked_modules or self.blocks_dotted(dotted):
            return False
        if self.trusts(module):
            return True
        if self.allow is not None and not _covers(self.allow, module) and module != "__future__":
            return False
        if name == "*":
            return module in imports.STARRED and not self.strict
        if imports.exports(dotted, self.strict) is not None:
            return self.may_import(dotted)
        if (table := imports.exports(module, self.strict)) is not None:
            return name in table
        return self.may_import(module) and name not in imports.REACHES and not name.startswith("_")

    def blocks_dotted(self, dotted: str) -> bool:
        return _covers(self.blocked_dotted, dotted)

    def hints(self) -> dict[str, Any]:
        """What a refused peer may want to know (§7.4)."""
        allowed = self.allow
        if allowed is None:
            allowed = frozenset(imports.EXPORTS if self.strict else {**imports.EXPORTS, **imports.LOOSE_EXPORTS})
        blocked = self.blocked_modules | (imports.DANGEROUS - self.trust)
        return {
            "blocked_imports": sorted(blocked),
            "allowed_imports": sorted(m for m in allowed | self.trust if self.may_import(m)),
            "max_code_size_bytes": self.max_bytes,
        }

    def declaration(self) -> dict[str, Any]:
        """The lists and the size that are enforced, as a tool declares them (§7.3)."""
        if self.level == "unrestricted":
            return {"max_code_size_bytes": self.max_bytes}
        builtins = names.STRICT_BUILTINS if self.strict else names.BLOCKED_BUILTINS
        calls = {f"{name}(" for name in builtins | self.blocked_names}
        patterns = calls | self.blocked_dotted | {*self.blocked_texts}
        found: dict[str, Any] = {"max_code_size_bytes": self.max_bytes, "blocked_patterns": sorted(patterns)}
        blocked = self.blocked_modules
        if self.strict or self.allow is not None:
            allowed = frozenset(imports.EXPORTS) if self.allow is None else self.allow
            found["allowed_imports"] = sorted(m for m in allowed | self.trust if self.may_import(m))
        else:
            known = (m for m in imports.DANGEROUS | sys.stdlib_module_names if not m.startswith("_"))
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
