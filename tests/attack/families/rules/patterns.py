"""Texts against patterns that backtrack, wherever a caller's text meets a pattern: the server stays idle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from defserve import Server, UsageError
from defserve.protocols.mcp.asking.client_features import ElicitationForm
from defserve.protocols.mcpl.state.states import StateValues
from tests.attack.arena import Kind, Served
from tests.attack.controls.rules import declare_any_pattern, match_by_python
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import Caller, outcome
from tests.attack.trial import Control, Family, Trial
from tests.binding.arguments import test_patterns as declared

FAMILY = Family("patterns")
PLACES = ("field", "schema", "inner", "names", "members", "ask", "api")
NAMES = ("nested", "choice", "words", "optional", "polynomial", "anything")
BUSY = 0.8
"""Seconds of the processor that a call may take. Python's engine needs more for the shortest of these texts."""
ASKS: Json = {"elicitation": {}}

# Short ones keep a backtracking engine busy for seconds; long ones for ever.
TEXTS = {
    "short": "a" * 26 + "!",
    "long": "a" * 9_000 + "!",
    "lines": "a" * 4_000 + "\n" + "a" * 4_000,
    "beyond ASCII": "a" * 8_000 + "\u0430",
}


def processor(served: Served) -> float:
    """Seconds of the processor that a server has used."""
    fields = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(caller: Caller, place: str, name: str, text: str) -> Json:
    call: Json = {"name": f"{place}_{name}", "arguments": {}}
    if place == "ask":
        asked = caller.alone("tools/call", call, capabilities=ASKS)["result"]
        answers = {"which": {"action": "accept", "content": {"text": text}}}
        call |= {"inputResponses": answers, "requestState": asked["requestState"]}
    else:
        given = {"inner": {"text": [text] * 5}, "names": {text: 1}, "members": {text: "x"}}
        call["arguments"] = given.get(place, {"text": text})
    return caller.alone("tools/call", call, capabilities=ASKS)


@FAMILY.attack(
    "over HTTP",
    Control(match_by_python, "schema.* busy", "schema, nested, short"),
    Control(match_by_python, "names.* busy", "names, nested, short"),
    Control(match_by_python, "ask.* busy", "ask, nested, short"),
    Control(match_by_python, "api.* busy", "api, nested, short"),
)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind("patterned"))
    caller = Caller(served.place)
    trial.expect("taken" in outcome(send(caller, "schema", "nested", "aa")), "a text that fits is refused")
    cases = {f"{place}, {name}, {text}": (place, name, text) for place in PLACES for name in NAMES for text in TEXTS}
    warm = set[str]()
    for told, (place, name, text) in trial.choose(cases):
        if place not in warm:
            send(caller, place, "polynomial", "aa")
            warm.add(place)
        before = processor(served)
        got = outcome(send(caller, place, name, TEXTS[text]))
        spent = processor(served) - before
        trial.expect(spent < BUSY, f"{told}: busy for {spent:.1f} s: {got}")


def tool(annotation: Any) -> None:
    def f(given: Any) -> str:
        return ""

    f.__annotations__ = {"given": annotation, "return": str}
    Server("t").tool(f)


DOORS: dict[str, Callable[[Any], object]] = {
    "a tool": tool,
    "a question": ElicitationForm.from_type,
    "a state": lambda kind: StateValues(kind, "state"),
}


@FAMILY.attack("declared for Python's engine", Control(declare_any_pattern, "is taken", here=True))
def _(trial: Trial) -> None:
    """No author can hand callers' texts to Python's engine, however deep the pattern is and at whatever door."""
    names = ("Inner", "Outer", "WithDefault", "ByPython", "OfPython", "Typed")
    models = {name: getattr(declared, name) for name in names}
    slow = {
        "alone": declared.SLOW,
        "list": list[declared.SLOW],
        "dict": dict[str, declared.SLOW],
        "keys": dict[declared.SLOW, int],
        "tuple": tuple[int, declared.SLOW],
        "union": int | list[declared.SLOW],
        **models,
        **{f"list of {name}": list[model] for name, model in models.items()},
    }
    cases = {
        f"{door}, {name}": (take, kind)
        for door, take in DOORS.items()
        for name, kind in slow.items()
        if door == "a tool" or name in models
    }
    for name, (take, kind) in trial.choose(cases):
        try:
            take(kind)
        except UsageError as refused:
            trial.expect("pattern" in str(refused), f"{name}: is refused for another reason: {refused}")
        else:
            trial.expect(False, f"{name}: is taken")
