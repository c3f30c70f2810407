"""What comes after a first matrix: is it worse than before, which cases are missing, would another description help?

The gate and the suggestion both compare definitions by fresh runs, one of each in turns, so that a model which drifts
moves both. What needs no model is here too: the ranker of the tool search, and a draft of cases for close pairs.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.core.json_values import is_array
from defserve.errors import UsageError
from defserve.search.entries import make_listed_entry
from defserve.search.ranking import NO_FILTER as NO_ENTRY_FILTER
from defserve.search.ranking import SimilarToolPair, ToolIndex, find_similar_tool_pairs
from defserve.search.scores import weigh_stems
from defserve.tooling.evals.cases import EvalCase, Expectation, ExpectedCall
from defserve.tooling.evals.dialects import ModelRequest, PersonMessage
from defserve.tooling.evals.judging import (
    FRESH_RUNS_PER_SUSPECT,
    FreshTallies,
    GateResult,
    ModelAnswer,
    ModelCall,
    Tally,
    ToolFacts,
    compute_sign_flip_p,
    judge_change,
)
from defserve.tooling.evals.recordings import Recording, StaleRecording
from defserve.tooling.evals.reports import find_confused_pairs
from defserve.tooling.evals.running import (
    CaseOutcome,
    Definitions,
    RunOutcome,
    SuiteRunner,
    group_outcomes,
    tally_other_recording,
)
from defserve.tooling.lint.definitions import ItemDefinition, ServerDefinitions
from defserve.tooling.lint.wording_rules import find_hidden_text, find_long_descriptions, find_prompt_injections

Json: TypeAlias = dict[str, Any]


# -- The gate: `--baseline FILE`.


async def compare_with_baseline(
    runner: SuiteRunner, outcomes: Sequence[CaseOutcome], baseline: Recording
) -> GateResult:
    """Whether the suite is worse than in an older recording. Raises UsageError if that is of another model."""
    if baseline.head is None or not baseline.answers:
        raise UsageError(f"{baseline.path} holds no answers", fix="name a recording that was committed before")
    if baseline.head.model != runner.model:
        raise UsageError(
            f"{baseline.path} was recorded with {baseline.head.model}, not with {runner.model}",
            fix="compare recordings of one model",
        )
    cases = {outcome.case.name: outcome.case for outcome in outcomes}
    old_definitions = runner.definitions.with_recorded_definitions(baseline.head)
    old = await tally_other_recording(runner, cases.values(), baseline)

    async def run_fresh(name: str) -> FreshTallies | None:
        try:
            return await _run_in_turns(runner, cases[name], old_definitions, runner.definitions, "fresh")
        except StaleRecording:
            return None

    new = {outcome.case.name: outcome.tally for outcome in outcomes if not outcome.missing_count}
    return await judge_change(old, new, {name: case.weight for name, case in cases.items()}, run_fresh)


async def _run_in_turns(
    runner: SuiteRunner,
    case: EvalCase,
    old: Definitions,
    new: Definitions,
    label: str,
    runs: int = FRESH_RUNS_PER_SUSPECT,
) -> FreshTallies | None:
    """As many runs with the old definitions as with the new ones. None if one is missing."""
    outcomes: tuple[list[RunOutcome], list[RunOutcome]] = ([], [])
    for number in range(1, runs + 1):
        for side, definitions in zip(outcomes, (old, new), strict=True):
            side.append(await runner.run_case(case, f"{label}-{number}", definitions))
            if side[-1].status == "missing":
                return None
    return FreshTallies(*(CaseOutcome(case, tuple(side)).tally for side in outcomes))


# -- The ranker: which tool the server's own search would put first. It knows no arguments and asks nobody.


def make_ranker_ask() -> Callable[[ModelRequest], Awaitable[ModelAnswer]]:
    """A "model" that calls what the ranker puts first for the person's last words. Too weak to judge a case."""

    async def ask(request: ModelRequest) -> ModelAnswer:
        said = [message.text for message in request.messages if isinstance(message, PersonMessage)]
        index = ToolIndex([make_listed_entry(tool) for tool in request.tools], weigh_stems, None)
        hits = index.search(said[-1] if said else "", "hybrid", NO_ENTRY_FILTER).hits
        return ModelAnswer(calls=(ModelCall(hits[0].entry.name, {}),)) if hits else ModelAnswer("no tool fits")

    return ask


def make_tools_only_case(case: EvalCase) -> EvalCase:
    """A case that asks for tools alone, once: the ranker gives the same answer each time, and no arguments."""
    turn = case.turns[0]
    calls = tuple(ExpectedCall(call.tool, {}) for call in turn.expect.calls)
    return replace(
        case, turns=(turn._replace(expect=Expectation(turn.expect.combination, calls), result=None),), runs=1
    )


def with_open_schemas(definitions: Definitions) -> Definitions:
    """The same tools, which take anything."""
    open_schema = {"type": "object", "additionalProperties": True}
    bare = {name: {**tool, "inputSchema": open_schema} for name, tool in definitions.facts.tools.items()}
    return replace(definitions, facts=ToolFacts(bare, definitions.facts.safe))


# -- A draft: the close pairs that no case tells apart.


MAX_DRAFT_PAIRS: Final = 50


def find_untested_pairs(definitions: Definitions, cases: Iterable[EvalCase]) -> list[SimilarToolPair]:
    """Pairs of tools that could be mixed up, and that are not both expected by some case."""
    tested = {tool for case in cases for tool in case.tools}
    pairs = find_similar_tool_pairs(
        [make_listed_entry(tool) for tool in definitions.facts.tools.values()], DRAFT_LIKENESS
    )
    return [pair for pair in pairs if not {pair.one.name, pair.other.name} <= tested][:MAX_DRAFT_PAIRS]


DRAFT_PROMPT: Final = "TODO: what a person says who needs "
DRAFT_LIKENESS: Final = 0.35
"""Lower than for a warning: a case too many costs a minute, one too few is a mix-up that nobody sees."""


def draft_suite(definitions: Definitions, cases: Iterable[EvalCase], server: str) -> Iterator[str]:
    """The lines of a suite to fill in: first the close pairs, then the tools that nobody asks for."""
    known = list(cases)
    pairs = find_untested_pairs(definitions, known)
    tested = {tool for case in known for tool in case.tools}
    drafted: dict[str, str] = {}
    for pair in pairs:
        words = ", ".join(pair.shared)
        for one, other in ((pair.one, pair.other), (pair.other, pair.one)):
            drafted.setdefault(one.name, f"close to {other.name} ({pair.likeness:.2f}): both say {words}")
    for name in definitions.facts.tools:
        if name not in tested:
            drafted.setdefault(name, "no case yet")
    yield "# Replace each prompt with what a person would say. Do not name the tool."
    if server:
        yield f"server: {json.dumps(server)}"
    yield "runs: 5"
    yield "cases:"
    for name, reason in drafted.items():
        words = name.replace("_", " ")
        yield f"  # {reason}"
        yield f"  - name: {json.dumps(f'{name}, 1')}"
        yield f"    prompt: {json.dumps(DRAFT_PROMPT + words)}"
        yield f"    expect: {json.dumps(name)}"
    yield "  - {name: small talk, prompt: Good morning!, expect: none}"


# -- A suggestion: another description for the tool that loses, judged on cases that the model has not seen.


MIN_HELD_CASES: Final = 8
PROPOSALS: Final = 3
MAX_FAILURES_SHOWN: Final = 20
MAX_DESCRIPTION_LENGTH: Final = 1_000
GAIN_P: Final = 0.05

_TASK: Final = (
    "A model chooses tools by their descriptions, and it chose the wrong one. Write three other descriptions for the"
    " tool that lost. Say what the tool does and when to use it rather than the other. At most three sentences each."
    " Do not address the model, and do not copy the requests. Answer with a JSON array of three texts, nothing else."
)


class Suggestion(NamedTuple):
    """What became of it. Without a `description` there is no gain, and `problem` says why."""

    tool: str = ""
    rival: str = ""
    description: str = ""
    cases: int = 0
    old: Tally = Tally(0, 0)
    new: Tally = Tally(0, 0)
    p: float = 1.0
    looks: int = 0
    problem: str = ""
    diff: tuple[str, ...] = ()


def is_held(case: str) -> bool:
    """Whether a case belongs to the held-out half: by its name, so it never changes sides."""
    return sha256(case.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 1


async def suggest_description(
    runner: SuiteRunner, outcomes: Sequence[CaseOutcome], propose: Callable[[ModelRequest], Awaitable[ModelAnswer]]
) -> Suggestion:
    """Find the pair that loses most on the tuning half, ask for other descriptions, and judge the best on the rest."""
    tuning = [outcome for outcome in outcomes if not is_held(outcome.case.name)]
    lost = find_confused_pairs(tuning, runner.definitions)
    if not lost:
        return Suggestion(problem="no tool loses to another in the tuning half of the cases")
    tool, rival = lost[0]["expected"], lost[0]["called"]
    held = [outcome.case for outcome in outcomes if is_held(outcome.case.name)]
    of_pair = [case for case in held if {tool, rival} & set(case.tools)]
    if len(of_pair) < MIN_HELD_CASES:
        return Suggestion(
            tool,
            rival,
            problem=f"{len(of_pair)} cases of {tool} and {rival} are in the held-out half, and {MIN_HELD_CASES} are"
            " needed: write more cases for these two tools",
        )
    failures = [
        (outcome.case, run) for outcome in tuning for run in outcome.runs if outcome.case.name in lost[0]["cases"]
    ]
    answer = await propose(_make_proposal_request(runner, tool, rival, failures))
    proposals = [text for text in _parse_proposals(answer.text) if is_clean_description(runner.definitions, tool, text)]
    if not proposals:
        return Suggestion(tool, rival, problem="the model proposed no description that passes `defserve check`")
    trial = replace(runner, recording=None)
    asked = [outcome.case for outcome in tuning if {tool, rival} & set(outcome.case.tools)]
    best = await _choose_best(trial, tool, asked, proposals)
    looks = runner.recording.count_held_out_look() if runner.recording is not None else 1
    return await _judge_held(trial, tool, rival, held, best, looks)


def _make_proposal_request(
    runner: SuiteRunner, tool: str, rival: str, failures: Sequence[tuple[EvalCase, RunOutcome]]
) -> ModelRequest:
    tools = runner.definitions.facts.tools
    shown = {name: {key: tools[name].get(key) for key in ("description", "inputSchema")} for name in (tool, rival)}
    failed = [
        {"request": case.prompt, "right": run.expected, "called": run.called}
        for case, run in failures
        if run.status == "failed"
    ]
    unique = list({json.dumps(each, sort_keys=True): each for each in failed}.values())[:MAX_FAILURES_SHOWN]
    asked = {"tool_that_lost": tool, "other_tool": rival, "definitions": shown, "failures": unique}
    text = json.dumps(asked, ensure_ascii=False, indent=1)
    return ModelRequest(runner.model.name, _TASK, (PersonMessage(text),), (), runner.parameters, runner.is_local)


def _parse_proposals(text: str) -> list[str]:
    begin, end = text.find("["), text.rfind("]")
    try:
        found: Any = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except ValueError:
        found = None
    texts = [" ".join(each.split()) for each in found if isinstance(each, str)] if is_array(found) else []
    return [each[:MAX_DESCRIPTION_LENGTH] for each in texts if each][:PROPOSALS]


def is_clean_description(definitions: Definitions, tool: str, description: str) -> bool:
    """Whether `check`'s rules for texts have nothing against a description."""
    wire = {**definitions.facts.tools[tool], "description": description}
    server = ServerDefinitions((ItemDefinition("tool", tool, wire),))
    rules = (find_hidden_text, find_prompt_injections, find_long_descriptions)
    return not any(next(iter(rule(server)), None) for rule in rules)


async def _choose_best(runner: SuiteRunner, tool: str, cases: Sequence[EvalCase], proposals: Sequence[str]) -> str:
    """The proposal that does best on the tuning half. Its figure is told to nobody: it was chosen for it."""
    scores: dict[str, float] = {}
    for number, text in enumerate(proposals):
        definitions = runner.definitions.with_description(tool, text)
        runs = [
            await runner.run_case(case, f"tune-{number}-{run}", definitions)
            for case in cases
            for run in range(1, case.runs + 1)
        ]
        scores[text] = sum(outcome.tally.rate for outcome in group_outcomes(cases, runs))
    return max(scores, key=lambda text: scores[text])


async def _judge_held(
    runner: SuiteRunner, tool: str, rival: str, held: Sequence[EvalCase], description: str, looks: int
) -> Suggestion:
    new_definitions = runner.definitions.with_description(tool, description)
    tallies: dict[str, FreshTallies] = {}
    for case in held:
        fresh = await _run_in_turns(runner, case, runner.definitions, new_definitions, "held", case.runs)
        if fresh is None:
            reason = " ".join(str(runner.stopped or f"the endpoint failed at {case.name}").split())
            return Suggestion(tool, rival, looks=looks, problem=reason)
        tallies[case.name] = fresh
    old, new = (_sum_tallies([getattr(fresh, side) for fresh in tallies.values()]) for side in ("old", "new"))
    # A gain is a fall of the negated differences.
    p = compute_sign_flip_p([fresh.old.rate - fresh.new.rate for fresh in tallies.values()])
    made = Suggestion(tool, rival, "", len(held), old, new, p, looks)
    if new.rate <= old.rate or p >= GAIN_P:
        return made._replace(problem="no description was better on the held-out half")
    before = str(runner.definitions.facts.tools[tool].get("description") or "")
    lines = difflib.unified_diff(before.splitlines(), description.splitlines(), tool, tool, lineterm="")
    return made._replace(description=description, diff=tuple(lines))


def _sum_tallies(tallies: Sequence[Tally]) -> Tally:
    return Tally(sum(tally.passed for tally in tallies), sum(tally.runs for tally in tallies))


def suggestion_to_wire(made: Suggestion) -> Mapping[str, Any]:
    return {**made._asdict(), "old": list(made.old), "new": list(made.new), "diff": list(made.diff)}
