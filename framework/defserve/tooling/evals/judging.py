"""Whether a model's answer is the right one: the matchers of arguments, the verdict on one turn, and what runs prove.

What a model sends is read as it came: all parallel calls count, arguments must fit the tool's schema, and an answer
that is no answer (broken JSON, a call written as text, nothing at all) is `malformed`, never a pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from unicodedata import normalize

from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import is_number
from defserve.errors import find_nearest_names
from defserve.tooling.evals.cases import EvalCase, Expectation, ExpectedCall, is_matcher
from defserve.tooling.lint.definitions import problems

AnswerStop: TypeAlias = Literal["end", "length", "refused", "filtered"]
"""Why the model stopped: it was done, its answer was cut, it refused, or a filter of the endpoint did."""

NONE, UNKNOWN, MALFORMED = "none", "unknown", "malformed"
STOP_LABELS: Final[Mapping[AnswerStop, str]] = {"refused": "refused", "filtered": "filtered", "length": "length"}
SPECIAL_LABELS: Final = (NONE, UNKNOWN, MALFORMED, *STOP_LABELS.values())
"""What a model may do instead of calling a tool: the columns of the matrix besides the tools."""

MAX_REASON_LENGTH: Final = 300


class ModelCall(NamedTuple):
    """A tool call. `arguments` is None if they are no JSON object. `id` is the endpoint's own, for the reply."""

    name: str
    arguments: Mapping[str, Any] | None
    id: str = ""


class TokenUsage(NamedTuple):
    """What an endpoint says that it read and wrote; None if it does not say so."""

    input: int | None = None
    output: int | None = None


NO_USAGE: Final = TokenUsage()


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """One answer of a model, in the same words for all endpoints. `raw` goes back unchanged and is never stored."""

    text: str = ""
    calls: tuple[ModelCall, ...] = ()
    stop: AnswerStop = "end"
    usage: TokenUsage = NO_USAGE
    raw: Any = field(default=None, compare=False, repr=False)


class Judgement(NamedTuple):
    """`called` is what the model did: a tool, or one of `SPECIAL_LABELS`. `reason` says what was wrong."""

    passed: bool
    called: str
    reason: str = ""


class ToolFacts(NamedTuple):
    """The tools as a server lists them, and which of them are marked safe."""

    tools: Mapping[str, Mapping[str, Any]]
    safe: frozenset[str] = frozenset()


def judge_turn(
    expect: Expectation, case: EvalCase, answers: Sequence[ModelAnswer], facts: ToolFacts, switch: str = ""
) -> Judgement:
    """Judge what a model did in one turn: mostly one answer, with tools that run several.

    `switch` is what turns tool calls on at this kind of endpoint, for a call that was written as text.
    """
    last = answers[-1]
    calls = [call for answer in answers for call in answer.calls]
    if (label := STOP_LABELS.get(last.stop)) is not None:
        is_allowed = case.allows_refusal and last.stop in ("refused", "filtered") and not calls
        return Judgement(is_allowed, label, "" if is_allowed else _STOP_REASONS[last.stop])
    for call in calls:
        if call.arguments is None:
            return Judgement(False, MALFORMED, f"the arguments of {call.name} are no JSON object")
    if not calls and (problem := _find_broken_answer(last, facts.tools)):
        return Judgement(False, MALFORMED, f"{problem}{f'; {switch}' if switch else ''}")
    for call in calls:
        if call.name in case.forbid:
            return Judgement(False, call.name, f"{call.name} is forbidden here")
    if expect.combination == "none":
        return Judgement(not calls, _label(calls, facts), f"called {calls[0].name}" if calls else "")
    return _judge_calls(expect, calls, facts)


_STOP_REASONS: Final[Mapping[AnswerStop, str]] = {
    "length": "the answer was cut: give more --max-output-tokens",
    "refused": "the model refused",
    "filtered": "the endpoint's filter stopped the answer",
}


def _judge_calls(expect: Expectation, calls: Sequence[ModelCall], facts: ToolFacts) -> Judgement:
    matched, missing, near = _match_calls(expect, calls, facts)
    extra = [call for at, call in enumerate(calls) if at not in matched]
    if missing is not None:
        # A right tool with wrong arguments is no mix-up: the matrix shows it on the diagonal.
        if near:
            return Judgement(False, missing.tool, near[:MAX_REASON_LENGTH])
        wrong = [call for call in extra if call.name not in facts.safe] or extra
        label = _label(wrong, facts)
        return Judgement(False, label, _describe_wrong_tool(missing, wrong, facts))
    for call in extra:
        if found := problems(facts.tools.values(), call.name, call.arguments or {}):
            label = call.name if call.name in facts.tools else UNKNOWN
            return Judgement(False, label, f"{call.name}: {found[0]}"[:MAX_REASON_LENGTH])
        if call.name not in facts.safe:
            return Judgement(False, call.name, f"{call.name} was called as well")
    return Judgement(True, expect.calls[0].tool if expect.combination != "any" else calls[min(matched)].name)


def _match_calls(
    expect: Expectation, calls: Sequence[ModelCall], facts: ToolFacts
) -> tuple[set[int], ExpectedCall | None, str]:
    """The places of calls that are right, the first expected call that is missing, and what was nearly it."""
    matched, near, begin = set[int](), "", 0
    for wanted in expect.calls:
        place = None
        for at in range(begin, len(calls)):
            if at in matched or calls[at].name != wanted.tool:
                continue
            if (problem := find_call_problem(wanted, calls[at], facts.tools)) is None:
                place = at
                break
            near = near or problem
        if place is not None:
            matched.add(place)
            begin = place + 1 if expect.combination == "in_order" else 0
        if expect.combination == "any" and place is not None:
            return matched, None, ""
        if expect.combination != "any" and place is None:
            return matched, wanted, near
    return (matched, expect.calls[0], near) if expect.combination == "any" else (matched, None, "")


def _label(calls: Sequence[ModelCall], facts: ToolFacts) -> str:
    if not calls:
        return NONE
    return calls[0].name if calls[0].name in facts.tools else UNKNOWN


def _describe_wrong_tool(missing: ExpectedCall, wrong: Sequence[ModelCall], facts: ToolFacts) -> str:
    if not wrong:
        return f"{missing.tool} was not called"
    name = wrong[0].name
    if name in facts.tools:
        return f"called {name} instead of {missing.tool}"
    near = find_nearest_names(name, facts.tools)
    return f"there is no tool {name!r}{f'; the nearest is {near[0]}' if near else ''}"


# -- A call written as text: the endpoint, or the model's template, has no tool calls.


_CALL_MARKS: Final = re.compile(r"<tool_call>|<\|tool_call|\[TOOL_CALLS\]|<function[=_ ]|<\|python_tag\|>|<invoke ")
_NAMED: Final = re.compile(r'"(?:name|function|tool|tool_name)"\s{0,8}:\s{0,8}"([^"\\]{1,128})"')
_CALL_OBJECT: Final = re.compile(r"(?:```\w{0,16}\s{1,8})?[\[{]")
_ARGUMENTS: Final = re.compile(r'"(?:arguments|args|parameters|input)"\s{0,8}:')


def _find_broken_answer(answer: ModelAnswer, tools: Mapping[str, Any]) -> str:
    text = answer.text[:20_000]
    if not text.strip():
        return "the answer is empty"
    names = _NAMED.findall(text)
    # An answer that is nothing but a call is one, even of a tool that does not exist.
    is_call = bool(names and _CALL_OBJECT.match(text.lstrip()) and _ARGUMENTS.search(text))
    if is_call or _CALL_MARKS.search(text) or any(name in tools for name in names):
        return "a call was written as text"
    return ""


# -- Matchers: whether the arguments of a call fit what a case expects.


def find_call_problem(wanted: ExpectedCall, call: ModelCall, tools: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why the arguments of a call are not those that are wanted, or not allowed by its schema; None if they are."""
    arguments = call.arguments or {}
    if found := problems(tools.values(), call.name, arguments):
        return f"{call.name}: {found[0]}"
    schema: Any = (tools.get(call.name) or {}).get("inputSchema") or {}
    properties: Any = schema.get("properties") or {}
    for name, expected in wanted.arguments.items():
        about: Any = properties.get(name)
        default = about.get("default", MISSING) if is_object(about) else MISSING
        if problem := find_mismatch(expected, arguments.get(name, MISSING), default):
            return f"{call.name}.{name}: {problem}"
    return None


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


def find_mismatch(expected: Any, actual: Any, default: Any = MISSING) -> str | None:
    """Why a value does not fit an expected one or a matcher; None if it does."""
    if is_matcher(expected):
        for name, wanted in expected.items():
            if name == "absent":
                if actual is not MISSING and not _are_equal(actual, default):
                    return f"should not be given, is {_show(actual)}"
            elif actual is MISSING:
                return "is missing"
            elif not _MATCHERS[name](wanted, actual):
                return f"should be {_WORDS[name]} {_show(wanted)}, is {_show(actual)}"
        return None
    if actual is MISSING:
        return "is missing"
    if is_object(expected):
        if not is_object(actual):
            return f"should be an object, is {_show(actual)}"
        for name, below in expected.items():
            if problem := find_mismatch(below, actual.get(name, MISSING)):
                return f"{name}: {problem}"
        return None
    if is_array(expected):
        if not is_array(actual) or len(expected) != len(actual):
            return f"should be {_show(expected)}, is {_show(actual)}"
        mismatches = (find_mismatch(*pair) for pair in zip(expected, actual, strict=True))
        return next((f"[{at}]: {problem}" for at, problem in enumerate(mismatches) if problem), None)
    return None if _are_equal(expected, actual) else f"should be {_show(expected)}, is {_show(actual)}"


def _are_equal(one: Any, other: Any) -> bool:
    """As JSON has it: 1 is 1.0, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return normalize("NFC", one) == normalize("NFC", other)
    if is_array(one) and is_array(other):
        return len(one) == len(other) and all(_are_equal(*pair) for pair in zip(one, other, strict=True))
    if is_object(one) and is_object(other):
        return one.keys() == other.keys() and all(_are_equal(value, other[name]) for name, value in one.items())
    return type(other) is not _Missing and one == other


_IGNORED: Final = str.maketrans("", "", " ,./-_*^")


def fold_text(text: str) -> str:
    """A text as BFCL compares it: without case, spaces and `,./-_*^`."""
    return normalize("NFC", text).lower().translate(_IGNORED).replace("'", '"')


def _contains(wanted: Any, actual: Any) -> bool:
    if isinstance(actual, str):
        # YAML reads `contains: 555` as a number.
        text = str(wanted) if is_number(wanted) else wanted
        return isinstance(text, str) and normalize("NFC", text).casefold() in normalize("NFC", actual).casefold()
    return is_array(actual) and any(find_mismatch(wanted, item) is None for item in actual)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and value == int(value),
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "object": is_object,
    "array": is_array,
    "null": lambda value: value is None,
}
_MATCHERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "one_of": lambda wanted, actual: any(find_mismatch(each, actual) is None for each in wanted),
    "contains": _contains,
    "like": lambda wanted, actual: isinstance(actual, str) and fold_text(wanted) == fold_text(actual),
    "min": lambda wanted, actual: is_number(actual) and actual >= wanted,
    "max": lambda wanted, actual: is_number(actual) and actual <= wanted,
    "type": lambda wanted, actual: _TYPES[wanted](actual),
}
_WORDS: Final = {
    "one_of": "one of",
    "contains": "something with",
    "like": "like",
    "min": "at least",
    "max": "at most",
    "type": "of the type",
}


def _show(value: Any) -> str:
    shown = repr(value) if value is MISSING else json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


# -- What a few runs say about a model, and what they do not say.


Z_95: Final = 1.959963984540054

Verdict: TypeAlias = Literal["pass", "unclear", "fail", "incomplete"]


class Tally(NamedTuple):
    """How many of so many runs passed."""

    passed: int
    runs: int

    @property
    def rate(self) -> float:
        return self.passed / self.runs if self.runs else 0.0


class Interval(NamedTuple):
    low: float
    high: float


def compute_wilson_interval(tally: Tally) -> Interval:
    """The rates that are compatible with a count, at 95 % (Wilson's score interval)."""
    if not tally.runs:
        return Interval(0.0, 1.0)
    runs, rate, square = tally.runs, tally.rate, Z_95 * Z_95
    middle = rate + square / (2 * runs)
    spread = Z_95 * sqrt(rate * (1 - rate) / runs + square / (4 * runs * runs))
    scale = 1 + square / runs
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return Interval(0.0 if tally.passed == 0 else max(0.0, low), 1.0 if tally.passed == runs else min(1.0, high))


def judge_tally(tally: Tally, least: float, missing: int = 0) -> Verdict:
    """Whether a case passes: at or above `least`; it fails if even the best rate that fits is below."""
    if missing or not tally.runs:
        return "incomplete"
    if tally.rate >= least:
        return "pass"
    return "fail" if compute_wilson_interval(tally).high < least else "unclear"


def compute_pass_all(tally: Tally, k: int) -> float:
    """pass^k: how often k runs in a row would all pass."""
    return comb(tally.passed, k) / comb(tally.runs, k) if 0 < k <= tally.runs else 0.0


def compute_pass_any(tally: Tally, k: int) -> float:
    """pass@k: how often at least one of k runs would pass."""
    return 1 - comb(tally.runs - tally.passed, k) / comb(tally.runs, k) if 0 < k <= tally.runs else 0.0


def compute_fisher_p(old: Tally, new: Tally) -> float:
    """How often chance alone would make `new` this much worse than `old` or more (Fisher's exact test, one-sided)."""
    passed, runs = old.passed + new.passed, old.runs + new.runs
    whole = comb(runs, new.runs)
    least = max(0, passed - old.runs)
    worse = range(least, new.passed + 1)
    return sum(comb(passed, at) * comb(runs - passed, new.runs - at) for at in worse) / whole if whole else 1.0


MAX_SUMS: Final = 50_000
DRAWS: Final = 10_000


def compute_sign_flip_p(differences: Sequence[float]) -> float:
    """How often the sum would be this low or lower, if each difference had its sign by chance.

    Exact while the possible sums are few, as they are for counts; else by draws.
    """
    sizes = [abs(each) for each in differences if each]
    observed = sum(differences)
    if not sizes:
        return 1.0
    sums: dict[float, float] = {0.0: 1.0}
    for size in sizes:
        further: dict[float, float] = {}
        for value, share in sums.items():
            for moved in (round(value - size, 9), round(value + size, 9)):
                further[moved] = further.get(moved, 0.0) + share / 2
        sums = further
        if len(sums) > MAX_SUMS:
            return _draw_sign_flip_p(sizes, observed)
    return min(1.0, sum(share for value, share in sums.items() if value <= observed + 1e-7))


def _draw_sign_flip_p(sizes: Sequence[float], observed: float) -> float:
    draw = Random(0)
    hits = sum(sum(size if draw.getrandbits(1) else -size for size in sizes) <= observed + 1e-9 for _ in range(DRAWS))
    return (hits + 1) / (DRAWS + 1)


RESAMPLES: Final = 2_000


def compute_bootstrap_interval(rates: Sequence[float], weights: Sequence[float]) -> Interval:
    """The suite's score at 95 %, by drawing cases. Runs of one case are not independent, so they are not drawn."""
    if not rates:
        return Interval(0.0, 1.0)
    draw, means = Random(0), list[float]()
    places = range(len(rates))
    for _ in range(RESAMPLES):
        chosen = draw.choices(places, k=len(rates))
        means.append(sum(rates[at] * weights[at] for at in chosen) / sum(weights[at] for at in chosen))
    means.sort()
    return Interval(means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)])


def compute_weighted_mean(rates: Sequence[float], weights: Sequence[float]) -> float:
    whole = sum(weights)
    return sum(rate * weight for rate, weight in zip(rates, weights, strict=True)) / whole if whole else 0.0


# -- The gate: is the suite worse than it was? Two questions with two tests, so that noise does not raise an alarm.


SUITE_P: Final = 0.01
MIN_FALL: Final = 0.02
"""Points that the score must fall, however sure the fall is."""
SUSPECT_P: Final = 0.2
CASE_P: Final = 0.01
FRESH_RUNS_PER_SUSPECT: Final = 20
"""Runs of a suspect with the old definitions, and as many with the new ones."""


class FreshTallies(NamedTuple):
    """Runs that were made for the gate alone, old and new definitions in turns."""

    old: Tally
    new: Tally


class GateResult(NamedTuple):
    """What the gate says. `suspects` maps each case that looked worse to its fresh runs; None if there are none."""

    score_before: float
    score_now: float
    suite_p: float
    suspects: Mapping[str, FreshTallies | None]
    worse_cases: tuple[str, ...]

    @property
    def is_suite_worse(self) -> bool:
        return self.suite_p < SUITE_P and self.score_before - self.score_now >= MIN_FALL - 1e-9

    @property
    def is_worse(self) -> bool:
        return self.is_suite_worse or bool(self.worse_cases)

    @property
    def unchecked_suspects(self) -> tuple[str, ...]:
        """Suspects without fresh runs: nobody knows whether they are worse."""
        return tuple(name for name, fresh in self.suspects.items() if fresh is None)


RunFresh: TypeAlias = Callable[[str], Awaitable[FreshTallies | None]]


async def judge_change(
    old: Mapping[str, Tally], new: Mapping[str, Tally], weights: Mapping[str, float], run_fresh: RunFresh
) -> GateResult:
    """Compare the cases that both have. `run_fresh` measures a suspect again; None if it cannot."""
    names = [name for name in new if name in old and old[name].runs and new[name].runs]
    differences = [weights[name] * (new[name].rate - old[name].rate) for name in names]
    shares = [weights[name] for name in names]
    suspects: dict[str, FreshTallies | None] = {}
    for name in find_suspects({name: (old[name], new[name]) for name in names}):
        suspects[name] = await run_fresh(name)
    worse = tuple(name for name, fresh in suspects.items() if fresh is not None and is_case_worse(fresh, len(suspects)))
    return GateResult(
        compute_weighted_mean([old[name].rate for name in names], shares),
        compute_weighted_mean([new[name].rate for name in names], shares),
        compute_sign_flip_p(differences),
        suspects,
        worse,
    )


def find_suspects(pairs: Mapping[str, tuple[Tally, Tally]]) -> list[str]:
    """The cases that look worse than before. Many do by chance: they are only measured again."""
    return [
        name for name, (old, new) in pairs.items() if new.rate < old.rate and compute_fisher_p(old, new) < SUSPECT_P
    ]


def is_case_worse(fresh: FreshTallies, suspects: int) -> bool:
    """Whether the fresh runs alone say so. With more suspects each must be surer (Bonferroni)."""
    return compute_fisher_p(fresh.old, fresh.new) < CASE_P / max(1, suspects)
