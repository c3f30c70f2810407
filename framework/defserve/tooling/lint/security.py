"""Rules about what a tool may do, what it says of that, and what stands in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from defserve.tooling.lint.definitions import Definition, Definitions, ToolParameter
from defserve.tooling.lint.finding import LintFinding, about
from defserve.tooling.lint.words import CHANGES, CODES, DESTROYS, HARMLESS, RUN_WHAT, RUNS, TELLING, words


def unguarded(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        for parameter in tool.parameters if not tool.trusts else ():
            guard = _guard_for(parameter)
            if guard is not None and not parameter.guarded and parameter.takes_text:
                yield about(
                    tool,
                    f"takes {parameter.name!r} as plain text, and nothing judges it",
                    f"annotate it {guard}, or say validator='none' in its mark if you judge it yourself",
                )


def _guard_for(parameter: ToolParameter) -> str | None:
    named = words(parameter.name)
    if not named or named[-1] in HARMLESS:
        return None
    if named[-1] == "code" and len(named) > 1 and named[-2] in CODES:
        return None
    return TELLING.get(named[-1])


def unmarked(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        harm = _harm(tool.name)
        if harm is not None and not tool.security and tool.annotations.get("destructiveHint") is not True:
            yield about(
                tool,
                f"{harm}, by its name, and carries no mark",
                "put @dangerous(…) or @moderate(…) above its def: then it is confirmed, and clients are told;"
                " or, if it asks by itself, @dangerous(…, confirm=False)",
            )


def _harm(name: str) -> str | None:
    named = words(name)
    if DESTROYS & set(named[:1]):
        return "destroys something"
    if (RUNS & set(named[:1]) and RUN_WHAT & set(named[1:])) or (len(named) == 1 and named[0] in RUNS):
        return "runs something"
    return None


def _says_read_only(tool: Definition) -> bool:
    return tool.annotations.get("readOnlyHint") is True


def _changes(tool: Definition) -> bool:
    first = set(words(tool.name)[:1])
    return bool(first & (DESTROYS | CHANGES)) or _harm(tool.name) is not None


# What is said, what speaks against it, and the way out.
CONTRADICTIONS: Final[tuple[tuple[str, Callable[[Definition], bool], str], ...]] = (
    (
        "says readOnlyHint and destructiveHint at once",
        lambda tool: _says_read_only(tool) and tool.annotations.get("destructiveHint") is True,
        "drop the one that is not so",
    ),
    (
        "says readOnlyHint, and its name that it changes something",
        lambda tool: _says_read_only(tool) and _changes(tool) and tool.security.get("risk_level") != "safe",
        "drop the hint, or rename it",
    ),
    (
        "says readOnlyHint, and its mark that it is dangerous or has effects",
        lambda tool: (
            _says_read_only(tool)
            and (tool.security.get("risk_level") == "dangerous" or bool(tool.security.get("side_effects")))
        ),
        "drop the hint, or mark it as what it is",
    ),
    (
        "is marked safe, and its name says that it does harm",
        lambda tool: tool.security.get("risk_level") == "safe" and _harm(tool.name) is not None,
        "mark it @moderate or @dangerous, or rename it",
    ),
    (
        "is marked dangerous and cannot be taken back, but says destructiveHint: false",
        lambda tool: (
            tool.security.get("risk_level") == "dangerous"
            and not tool.security.get("reversible")
            and tool.annotations.get("destructiveHint") is False
        ),
        "drop the hint, or say reversible=True",
    ),
    (
        "uses the network, but says openWorldHint: false",
        lambda tool: (
            tool.annotations.get("openWorldHint") is False
            and (
                "network" in (tool.security.get("side_effects") or ())
                or any(str(p).startswith("network.") for p in tool.security.get("permissions_required") or ())
            )
        ),
        "drop the hint",
    ),
)


def contradictions(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        for problem, holds, fix in CONTRADICTIONS:
            if holds(tool):
                yield about(tool, problem, fix)


def unused_sets(found: Definitions) -> Iterator[LintFinding]:
    for one in found.feature_sets:
        if not one.declares:
            yield LintFinding(
                f"feature set {one.name!r}",
                "",
                "has nothing declared on it, so hosts are told that it may push and infer",
                'declare a tool or a hook on it, say uses=["pushEvents"] if you push from elsewhere, or take it out',
            )
