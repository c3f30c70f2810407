"""Is this Python code safe to run, as far as reading it can tell? (MGP §7) Judges; never runs.

Four layers, cheapest first: the bytes (`gate`), the syntax tree (`rules`), what RestrictedPython will compile
(`restricted`), and, elsewhere, the sandbox. The sandbox is the boundary; these layers give cheap refusals and
messages a model can act on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from defserve.guard.verdict import Verdict

Level = Literal["unrestricted", "standard", "strict", "readonly"]

__all__ = ["Level", "judge"]


def judge(
    source: str | bytes,
    *,
    level: Level = "standard",
    allow: Collection[str] | None = None,
    block: Collection[str] | None = None,
    max_bytes: int | None = None,
    trust: Collection[str] = (),
) -> Verdict:
    """Judge Python source at one of the levels of MGP §7.2.

    `allow` names the only modules that may be imported; without it, standard code may import what is not dangerous
    and strict code what has an export table. `block` holds modules and patterns to refuse besides: `name(` is any
    use of that built-in, `a.b` that dotted name through whatever alias, anything else is looked for in the code
    without comments and strings. The built-in danger list wins over `allow`; `trust` opts a module or built-in out
    of it by name (`trust=["os"]`), export table included. A module without an export table needs `trust` at strict.

    `unrestricted` code is only measured against `max_bytes` and must be UTF-8. Never raises.
    """
    # The jailed child imports a sibling of this function and must not pay for the judge.
    from defserve.guard.code.judgement import Policy, pronounce

    return pronounce(source, Policy.of(level, allow, block, max_bytes, trust))
