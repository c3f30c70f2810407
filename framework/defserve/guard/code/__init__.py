"""Judges Python source before it is run (MGP §7): `judge(source, …)` gives a Verdict.

Three layers, cheapest first: the bytes (`gate`), the syntax tree (`rules`), what RestrictedPython will compile
(`restricted`). They refuse cheaply, with messages a model can act on, and run nothing. The fourth layer is `sandbox/`;
only that one is a security boundary. This package loads no parser, because the jailed process imports it too.

May import: `guard.verdict`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.guard.code.levels import CodeLevel
    from defserve.guard.verdict import Verdict

__all__ = ["judge"]


def judge(
    source: str | bytes,
    *,
    level: CodeLevel = "standard",
    allow: Collection[str] | None = None,
    block: Collection[str] | None = None,
    max_bytes: int | None = None,
    trust: Collection[str] = (),
) -> Verdict:
    """Judge Python source at one of the levels of MGP §7.2.

    `allow` names the only modules that may be imported. Without it, standard code may import what is not dangerous, and
    strict code what has an export table. `block` holds modules and patterns to refuse besides: `name(` is any use of
    that built-in, `a.b` that dotted name through whatever alias, anything else is looked for in the code without
    comments and strings. The built-in danger list wins over `allow`; `trust` opts a module or built-in out of it by
    name (`trust=["os"]`), export table included. A module without an export table needs `trust` at strict.

    `unrestricted` code is only measured against `max_bytes` and must be UTF-8. Never raises.
    """
    from defserve.guard.code.judgement import pronounce
    from defserve.guard.code.policy import CodePolicy

    return pronounce(source, CodePolicy.of(level, allow, block, max_bytes, trust))
