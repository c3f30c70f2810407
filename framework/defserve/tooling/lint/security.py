"""Rules about what a tool may do, what it says about that, and what guards it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from defserve.tooling.lint.definitions import Definition, Definitions, ToolParameter
from defserve.tooling.lint.finding import LintFinding, about
from defserve.tooling.lint.words import CHANGES, CODES, DESTROYS, HARMLESS, RUN_WHAT, RUNS, TELLING, words


def unguarded(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        for parameter in tool.parameters if not tool.trusts else ():
            if (guard := _guard_for(parameter)) and not parameter.guarded and parameter.takes_text:
                yield about(
                    tool,
                    f"takes {parameter.name!r} as plain text, and nothing checks it",
                    f"annotate it with {guard}, or set validator='none' in its mark if you check it yourself",
                )


def _guard_for(parameter: ToolParameter) -> str | None:
    named = words(parameter.name)
    if not named or named[-1] in HARMLESS or (named[-1] == "code" and CODES & set(named[-2:-1])):
        return None
    return TELLING.get(named[-1])


def unmarked(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if (harm := _harm(tool.name)) and not tool.security and tool.annotations.get("destructiveHint") is not True:
            yield about(
                tool,
                f"{harm}, judging by its name, and has no mark",
                "put @dangerous(…) or @moderate(…) above its def, so that it is confirmed and clients know;"
                " if it asks by itself, use @dangerous(…, confirm=False)",
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
    return bool((DESTROYS | CHANGES) & set(words(tool.name)[:1])) or _harm(tool.name) is not None


# The problem, when it is one, and the fix.
CONTRADICTIONS: Final[tuple[tuple[str, Callable[[Definition], bool], str], ...]] = (
    (
        "has both readOnlyHint and destructiveHint",
        lambda tool: _says_read_only(tool) and tool.annotations.get("destructiveHint") is True,
        "remove the wrong one",
    ),
    (
        "has readOnlyHint, but its name says that it changes something",
        lambda tool: _says_read_only(tool) and _changes(tool) and tool.security.get("risk_level") != "safe",
        "remove the hint, or rename the tool",
    ),
    (
        "has readOnlyHint, but its mark says that it is dangerous or has effects",
        lambda tool: (
            _says_read_only(tool)
            and (tool.security.get("risk_level") == "dangerous" or bool(tool.security.get("side_effects")))
        ),
        "remove the hint, or correct the mark",
    ),
    (
        "is marked safe, but its name says that it does harm",
        lambda tool: tool.security.get("risk_level") == "safe" and _harm(tool.name) is not None,
        "mark it @moderate or @dangerous, or rename it",
    ),
    (
        "is marked dangerous and cannot be undone, but has destructiveHint: false",
        lambda tool: (
            tool.security.get("risk_level") == "dangerous"
            and not tool.security.get("reversible")
            and tool.annotations.get("destructiveHint") is False
        ),
        "remove the hint, or set reversible=True",
    ),
    (
        "uses the network, but has openWorldHint: false",
        lambda tool: (
            tool.annotations.get("openWorldHint") is False
            and (
                "network" in (tool.security.get("side_effects") or ())
                or any(str(p).startswith("network.") for p in tool.security.get("permissions_required") or ())
            )
        ),
        "remove the hint",
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
                'declare a tool or a hook on it, set uses=["pushEvents"] if you push from elsewhere, or remove it',
            )
