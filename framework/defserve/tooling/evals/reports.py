"""What a suite came to, as one JSON value, and the documents that are made of it: JUnit, and a page for people.

Everybody else reads that value: the terminal's table, the inspector's panel, other programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, TypeAlias
from xml.sax.saxutils import quoteattr

from defserve.base.html_pages import render_html_page
from defserve.base.redaction import escape_unprintable
from defserve.search.entries import STOP_WORDS, split_words, stem_word
from defserve.tooling.evals.cases import EvalSuite
from defserve.tooling.evals.endpoint import RANKER_DIALECT, ModelName, estimate_request_tokens
from defserve.tooling.evals.judging import (
    SPECIAL_LABELS,
    GateResult,
    Interval,
    Tally,
    Verdict,
    compute_bootstrap_interval,
    compute_pass_all,
    compute_pass_any,
    compute_weighted_mean,
    compute_wilson_interval,
    judge_tally,
)
from defserve.tooling.evals.running import CaseOutcome, Definitions

Json: TypeAlias = dict[str, Any]
REPORT_FORMAT: Final = 1
PASS_K: Final = 3
MAX_REASONS: Final = 3
MAX_SHARED_WORDS: Final = 4

EXIT_OK, EXIT_WORSE, EXIT_NOTHING, EXIT_STALE, EXIT_INCOMPLETE = 0, 1, 2, 3, 4


def make_report(
    suite: EvalSuite,
    model: ModelName,
    definitions: Definitions,
    outcomes: Sequence[CaseOutcome],
    *,
    stopped: str = "",
    notes: Sequence[str] = (),
    gate: GateResult | None = None,
) -> Json:
    """The whole report. Text in it that a model, an endpoint or a server wrote is escaped where it's shown."""
    cases = [_report_case(outcome, is_judged=model.dialect != RANKER_DIALECT) for outcome in outcomes]
    judged = [case for case in cases if case["runs"]]
    rates, weights = [case["rate"] for case in judged], [case["weight"] for case in judged]
    low, high = compute_bootstrap_interval(rates, weights)
    runs = [run for outcome in outcomes for run in outcome.runs if run.status != "missing"]
    tokens_in, tokens_out = sum(run.input_tokens for run in runs), sum(run.output_tokens for run in runs)
    requests = sum(run.requests for run in runs)
    return {
        "format": REPORT_FORMAT,
        "suite": suite.path.name,
        "model": str(model),
        "is_judged": model.dialect != RANKER_DIALECT,
        "verdict": judge_suite(cases, stopped=bool(stopped), gate=gate) if model.dialect != RANKER_DIALECT else None,
        "score": {"mean": compute_weighted_mean(rates, weights), "low": low, "high": high} if judged else None,
        "cases": cases,
        "matrix": make_matrix(outcomes),
        "lost": find_confused_pairs(outcomes, definitions),
        "lost_by_search": sorted({run.case for outcome in outcomes for run in outcome.runs if run.lost_by_search}),
        "tokens": {
            "definitions": estimate_request_tokens(list(definitions.tools)),
            "requests": requests,
            "input": tokens_in,
            "output": tokens_out,
            "money": _compute_money(suite.prices, model, tokens_in, tokens_out),
        },
        "renamed": definitions.renamed,
        "gate": None if gate is None else _report_gate(gate),
        "stopped": stopped,
        "notes": list(notes),
    }


def _report_case(outcome: CaseOutcome, *, is_judged: bool) -> Json:
    case, tally = outcome.case, outcome.tally
    interval: Interval = compute_wilson_interval(tally)
    failed = [run for run in outcome.runs if run.status == "failed"]
    reasons = Counter(run.reason for run in outcome.runs if run.status != "passed" and run.reason)
    return {
        "name": case.name,
        "expected": case.expected,
        "tags": list(case.tags),
        "weight": case.weight,
        "least": case.least,
        "passed": tally.passed,
        "runs": tally.runs,
        "missing": outcome.missing_count,
        "rate": tally.rate,
        "low": interval.low,
        "high": interval.high,
        "pass_all": compute_pass_all(tally, min(PASS_K, tally.runs)),
        "pass_any": compute_pass_any(tally, min(PASS_K, tally.runs)),
        "verdict": judge_tally(tally, case.least, outcome.missing_count) if is_judged else None,
        "instead": dict(Counter(_instead(run.expected, run.called) for run in failed).most_common()),
        "reasons": [reason for reason, _ in reasons.most_common(MAX_REASONS)],
    }


def _instead(expected: str, called: str) -> str:
    return "wrong arguments" if called == expected else called


def judge_suite(cases: Iterable[Mapping[str, Any]], *, stopped: bool = False, gate: GateResult | None = None) -> str:
    """The worst of all verdicts. A suite that was measured against an older one fails only if it is worse."""
    verdicts: set[Verdict] = {case["verdict"] for case in cases}
    if not verdicts:
        return "nothing"
    if gate is not None and gate.is_worse:
        return "worse"
    if "fail" in verdicts and gate is None:
        return "fail"
    if stopped or "incomplete" in verdicts or (gate is not None and gate.unchecked_suspects):
        return "incomplete"
    return "unclear" if "unclear" in verdicts and gate is None else "pass"


VERDICT_EXIT_CODES: Final[Mapping[str | None, int]] = {
    None: EXIT_OK,
    "pass": EXIT_OK,
    "unclear": EXIT_OK,
    "fail": EXIT_WORSE,
    "worse": EXIT_WORSE,
    "nothing": EXIT_NOTHING,
    "incomplete": EXIT_INCOMPLETE,
}


def make_matrix(outcomes: Iterable[CaseOutcome]) -> Json:
    """Expected → called → how often."""
    matrix: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for run in outcome.runs:
            if run.status != "missing":
                matrix.setdefault(run.expected, Counter())[run.called] += 1
    return {expected: dict(sorted(called.items())) for expected, called in sorted(matrix.items())}


# -- Which tool loses to which, and which words they share.


def find_confused_pairs(outcomes: Sequence[CaseOutcome], definitions: Definitions) -> list[Json]:
    """Each pair of tools where one was called for the other, most often lost first."""
    lost: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        for run in outcome.runs:
            is_pair = run.called not in SPECIAL_LABELS and run.expected in definitions.facts.tools
            if run.status == "failed" and is_pair and run.called != run.expected:
                lost.setdefault((run.expected, run.called), []).append(run.case)
    stems = {name: _stems_of(tool) for name, tool in definitions.facts.tools.items()}
    prompts = {outcome.case.name: outcome.case.prompt for outcome in outcomes}
    frequency = Counter(stem for each in stems.values() for stem in each)
    pairs: list[Json] = []
    for (expected, called), cases in sorted(lost.items(), key=lambda item: (-len(item[1]), item[0])):
        ours, theirs = stems.get(expected, {}), stems.get(called, {})
        asked = {stem: word for name in cases for stem, word in _stem_text(prompts[name]).items()}
        shared = sorted(ours.keys() & theirs.keys(), key=lambda stem: (frequency[stem], stem))
        only = sorted((asked.keys() & theirs.keys()) - ours.keys())
        pairs.append(
            {
                "expected": expected,
                "called": called,
                "count": len(cases),
                "cases": list(dict.fromkeys(cases)),
                "shared": [ours[stem] for stem in shared[:MAX_SHARED_WORDS]],
                "only_winner": [theirs[stem] for stem in only[:MAX_SHARED_WORDS]],
            }
        )
    return pairs


def _stems_of(tool: Mapping[str, Any]) -> dict[str, str]:
    return _stem_text(f"{tool.get('name')} {tool.get('description') or ''}")


def _stem_text(text: str) -> dict[str, str]:
    """Stem → the word as it stands."""
    words = [word for word in split_words(text) if word not in STOP_WORDS and len(word) > 2]
    return {stem_word(word): word for word in reversed(words)}


def _compute_money(
    prices: Mapping[str, tuple[float, float]] | None, model: ModelName, tokens_in: int, tokens_out: int
) -> float | None:
    pair = (prices or {}).get(str(model)) or (prices or {}).get(model.name)
    return None if pair is None else (pair[0] * tokens_in + pair[1] * tokens_out) / 1e6


def _report_gate(gate: GateResult) -> Json:
    def show(tally: Tally) -> list[int]:
        return [tally.passed, tally.runs]

    return {
        "before": gate.score_before,
        "now": gate.score_now,
        "p": gate.suite_p,
        "is_worse": gate.is_worse,
        "is_suite_worse": gate.is_suite_worse,
        "worse_cases": list(gate.worse_cases),
        "suspects": {
            name: None if fresh is None else {"old": show(fresh.old), "new": show(fresh.new)}
            for name, fresh in gate.suspects.items()
        },
    }


# -- JUnit: an unclear case is skipped, an incomplete one an error.


def render_junit(report: Json) -> str:
    """A JUnit file of a report."""
    cases: list[Json] = report["cases"]
    verdicts = Counter(case["verdict"] for case in cases)
    counts = {
        "tests": len(cases),
        "failures": verdicts["fail"],
        "errors": verdicts["incomplete"],
        "skipped": verdicts["unclear"],
    }
    numbers = " ".join(f'{name}="{count}"' for name, count in counts.items())
    lines = ['<?xml version="1.0" encoding="utf-8"?>']
    lines.append(f"<testsuite name={_attribute(report['suite'])} {numbers}>")
    for case in cases:
        element = _JUNIT_ELEMENTS.get(case["verdict"])
        begin = f"  <testcase classname={_attribute(report['model'])} name={_attribute(case['name'])}"
        if element is None:
            lines.append(f"{begin}/>")
            continue
        message = _attribute(f"{format_tally(case)}: {'; '.join(case['reasons']) or 'no reason'}")
        lines.append(f"{begin}><{element} message={message}/></testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


_JUNIT_ELEMENTS: Final = {"fail": "failure", "incomplete": "error", "unclear": "skipped"}


def _attribute(text: str) -> str:
    return quoteattr(escape_unprintable(text))


def format_tally(case: Mapping[str, Any]) -> str:
    """`4/5`, and what is missing."""
    missing = f", {case['missing']} missing" if case["missing"] else ""
    return f"{case['passed']}/{case['runs']}{missing}"


def format_interval(low: float, high: float) -> str:
    return f"{low * 100:.0f}-{high * 100:.0f} %"


def format_mistaken_calls(case: Mapping[str, Any]) -> str:
    """`lend 3, none 1`."""
    return ", ".join(f"{label} {count}" for label, count in case["instead"].items())


def format_score(report: Json) -> str:
    score = report["score"]
    if score is None:
        return "no score: nothing was judged"
    return f"score {score['mean'] * 100:.0f} % ({format_interval(score['low'], score['high'])})"


def format_confused_pair(pair: Mapping[str, Any]) -> str:
    """`lost: return_ to lend (21); both say "book", "person"`."""
    shared = ", ".join(f'"{word}"' for word in pair["shared"])
    only = ", ".join(f'"{word}"' for word in pair["only_winner"])
    both = f"; both say {shared}" if shared else ""
    alone = f"; only {pair['called']} says {only}, as the prompts do" if only else ""
    return f"lost: {pair['expected']} to {pair['called']} ({pair['count']}){both}{alone}"


def iter_gate_lines(gate: Mapping[str, Any]) -> Iterable[str]:
    """What the comparison with a baseline says."""
    fall = f"score {gate['before'] * 100:.0f} % to {gate['now'] * 100:.0f} % (p = {gate['p']:.3f})"
    yield f"{'worse' if gate['is_suite_worse'] else 'not worse'}: {fall}"
    for name, fresh in gate["suspects"].items():
        if fresh is None:
            yield f"not checked: {name} looks worse; fresh runs need the model"
            continue
        verdict = "worse" if name in gate["worse_cases"] else "not worse"
        (old, old_runs), (new, new_runs) = fresh["old"], fresh["new"]
        yield f"{verdict}: {name}, {old}/{old_runs} with the old definitions, {new}/{new_runs} with the new"


# -- A page for people: one file, no script.


_TABLE_STYLE: Final = (
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .6rem;text-align:left;"
    "border-bottom:1px solid #8884}.pass{color:#197a3d}.fail,.incomplete,.worse{color:#b3261e}.unclear{color:#8a6100}"
)


def render_html(report: Json) -> bytes:
    """A report as a page. Everything that others wrote is escaped."""
    parts = [f"<style>{_TABLE_STYLE}</style><h1>{_html(report['suite'])}</h1>"]
    verdict = report["verdict"]
    parts.append(
        f"<p>{_html(report['model'])}: <b class={_html(verdict or 'none')}>{_html(verdict or 'not judged')}</b>"
    )
    parts.append(f", {_html(format_score(report))}</p>")
    rows = [
        (
            case["name"],
            case["expected"],
            format_tally(case),
            format_interval(case["low"], case["high"]),
            case["verdict"] or "",
            format_mistaken_calls(case),
            "; ".join(case["reasons"]),
        )
        for case in report["cases"]
    ]
    parts.append(_table(("Case", "Expected", "Passed", "95 %", "Verdict", "Called instead", "Why"), rows))
    columns = sorted({called for counts in report["matrix"].values() for called in counts})
    parts.append("<h2>Expected × called</h2>")
    matrix = [
        (expected, *(str(counts.get(called, "")) for called in columns))
        for expected, counts in report["matrix"].items()
    ]
    parts.append(_table(("", *columns), matrix))
    lines = [format_confused_pair(pair) for pair in report["lost"]]
    if report["gate"] is not None:
        lines += iter_gate_lines(report["gate"])
    lines += [f"lost by search: {name}" for name in report["lost_by_search"]]
    lines += [*report["notes"], *([f"stopped: {report['stopped']}"] if report["stopped"] else [])]
    lines.append(f"definitions: about {report['tokens']['definitions']:,} tokens a request")
    parts.append("<ul>" + "".join(f"<li>{_html(line)}</li>" for line in lines) + "</ul>")
    return render_html_page(_html(f"{report['suite']}, {report['model']}"), "".join(parts))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{_html(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _html(text: str) -> str:
    return escape(escape_unprintable(text))
