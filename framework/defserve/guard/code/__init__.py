"""Judges Python source before it is run (MGP §7): `judge(source, …)` gives a Verdict.

Three layers, cheapest first: the bytes (`policy`), the syntax tree (`judgement`, `readonly`), what RestrictedPython
will compile (`restricted`). They refuse cheaply, with messages a model can act on, and run nothing. The fourth layer is
`sandbox/`; only that one is a security boundary. This package loads no parser, because the jailed process imports it
too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.guard.code.allowed_names import CodeLevel
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

    `allow` names the only modules that may be imported. Without it, standard code may import every module that is not
    dangerous, and strict code every module with an export table. `block` names more to refuse: a module; `name(` for
    any use of that built-in; `a.b` for that dotted name, under any alias; or a text, which is searched for in the code
    without comments and strings. The built-in danger list wins over `allow`. `trust` takes a module or built-in off
    that list (`trust=["os"]`); its export table then does not apply either. At strict, a module without an export table
    needs `trust`.

    `unrestricted` code must only be UTF-8 and not longer than `max_bytes`. Never raises.
    """
    from defserve.guard.code.judgement import judge_source
    from defserve.guard.code.policy import CodePolicy

    return judge_source(source, CodePolicy.from_options(level, allow, block, max_bytes, trust))
