"""`defserve eval`: puts a suite of cases to a model, or replays its answers, and shows which tool loses to which."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Final

from defserve.cli.content import explain_write_errors
from defserve.cli.exits import print_error
from defserve.cli.parser import (
    RESULT_JSON_FLAG,
    CommandArgument,
    CommandParser,
    make_flag,
    parse_positive_int,
    parse_seconds,
)
from defserve.cli.screen import LISTING_STEP, ProgressDisplay, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, Table, format_count
from defserve.cli.target import (
    TARGET_FORMS_HELP,
    ServerTarget,
    redirect_stdout_to_stderr,
    resolve_target,
    split_server_command,
)
from defserve.cli.target_connection import CONNECTION_OPTIONS, connect_target, list_disconnected_servers
from defserve.client.answers import Answers, Decline
from defserve.client.client import Client
from defserve.errors import PeerTimeout, UsageError
from defserve.tooling.evals.cases import SUITE_SUFFIXES, EvalCase, EvalSuite, collect_suite_warnings, read_suite
from defserve.tooling.evals.dialects import DIALECTS, ModelParameters
from defserve.tooling.evals.endpoint import (
    DEFAULT_MAX_TOKENS_TOTAL,
    DEFAULT_TIMEOUT_SECONDS,
    RANKER_DIALECT,
    ModelEndpoint,
    ModelName,
    TokenBudget,
    estimate_request_tokens,
    parse_model,
    resolve_model_address,
)
from defserve.tooling.evals.improving import (
    DRAFT_PROMPT,
    Suggestion,
    compare_with_baseline,
    draft_suite,
    make_ranker_ask,
    make_tools_only_case,
    suggest_description,
    suggestion_to_wire,
    with_open_schemas,
)
from defserve.tooling.evals.recordings import (
    StaleRecording,
    explain_stale_recording,
    make_recording_path,
    read_recording,
)
from defserve.tooling.evals.reports import (
    EXIT_NOTHING,
    EXIT_OK,
    EXIT_STALE,
    VERDICT_EXIT_CODES,
    Json,
    format_confused_pair,
    format_interval,
    format_mistaken_calls,
    format_score,
    format_tally,
    iter_gate_lines,
    make_report,
    render_html,
    render_junit,
)
from defserve.tooling.evals.running import (
    MANY_TOOLS_THRESHOLD,
    NOT_RUN_REASON,
    Definitions,
    SuiteRunner,
    fetch_definitions,
    group_outcomes,
)

ABOUT: Final = """Measure whether models choose the right tool: run a suite of cases against one, several times each.

Its answers are recorded beside the suite, in a file to commit. With --replay, and where CI=true, no model is asked:
the recording is judged again, and must match the definitions that are served now.
Exits with 0; 1 if a case failed or --baseline shows a loss; 2 if there is nothing to judge; 3 if the recording is
stale; 4 if the endpoint failed or runs are missing."""
EXAMPLES: Final = """  defserve eval server.py --draft > shelf.eval.yaml           the close pairs; write prompts
  defserve eval server.py shelf.eval.yaml --model ollama:qwen3
  defserve eval server.py shelf.eval.yaml --model chat:local --url http://127.0.0.1:8080
  defserve eval server.py shelf.eval.yaml --replay             in CI: no network
  defserve eval server.py shelf.eval.yaml --baseline old.jsonl is it worse than it was?
  defserve eval server.py shelf.eval.yaml --suggest            another description for the tool that loses
  defserve eval server.py shelf.eval.yaml --model ranker       no model: what the tool search would choose
"""
MOUNTED_POLL_SECONDS: Final = 0.1
VERDICT_STYLES: Final = {"pass": "good", "unclear": "warning", "fail": "bad", "incomplete": "bad", None: ""}

EVAL_OPTIONS: Final = (
    CommandArgument("--model", metavar="MODEL", help=f"{', '.join(f'{name}:NAME' for name in DIALECTS)} or ranker"),
    CommandArgument("--url", help="where the model is (default: the vendor, or Ollama on this machine)"),
    CommandArgument("--key-env", metavar="NAME", help="the variable that holds the endpoint's key"),
    CommandArgument("--runs", type=parse_positive_int, metavar="N", help="runs of each case, instead of the suite's"),
    CommandArgument("--case", action="append", default=[], metavar="NAME", help="only this case; repeatable"),
    CommandArgument("--tag", action="append", default=[], help="only cases with this tag; repeatable"),
    CommandArgument(
        "--tools",
        choices=("canned", "dry", "real"),
        default="canned",
        help="canned: nothing runs; dry: calls are validated; real: safe tools run (default: canned)",
    ),
    CommandArgument(
        "--allow", action="append", default=[], metavar="NAME", help="with --tools real: also run this tool; repeatable"
    ),
    CommandArgument("--client", metavar="NAME", help="list the tools as a client of this name sees them"),
    make_flag("--record", help="ask for what is not recorded, also where CI=true"),
    make_flag("--replay", help="ask no model: judge the recording"),
    CommandArgument("--recording", metavar="FILE", help="the recording (default: beside the suite)"),
    CommandArgument("--baseline", metavar="FILE", help="an older recording: fail only if it got worse"),
    make_flag("--draft", help="print a suite to fill in: close pairs of tools first"),
    make_flag("--suggest", help="look for a better description of the tool that loses most; writes nothing"),
    CommandArgument(
        "--max-tokens-total",
        type=parse_positive_int,
        default=DEFAULT_MAX_TOKENS_TOTAL,
        metavar="N",
        help=f"tokens that all requests may take (default: {DEFAULT_MAX_TOKENS_TOTAL:,})",
    ),
    CommandArgument("--max-output-tokens", type=parse_positive_int, metavar="N", help="tokens of one answer"),
    CommandArgument("--temperature", type=float, help="sent only if it is given"),
    CommandArgument("--tool-choice", metavar="CHOICE", help="auto, none, required or a tool; sent only if it is given"),
    CommandArgument("--context", type=parse_positive_int, metavar="N", help="ollama: tokens of the context"),
    CommandArgument(
        "--answer-timeout",
        type=parse_seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long the model may take (default: 120)",
    ),
    CommandArgument("--junit", metavar="FILE", help="also write a JUnit file"),
    CommandArgument("--html", metavar="FILE", help="also write a page"),
)


def run_eval(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = CommandParser("defserve eval", ABOUT, EXAMPLES).parse_options(
        before,
        CommandArgument(
            "words", nargs="*", metavar="TARGET SUITE", help=f"{TARGET_FORMS_HELP}; and a *.eval.yaml file"
        ),
        *EVAL_OPTIONS,
        RESULT_JSON_FLAG,
        *CONNECTION_OPTIONS,
    )
    words: list[str] = options.words
    suites = [word for word in words if word.endswith(SUITE_SUFFIXES)]
    if len(suites) > 1:
        raise UsageError("one suite at a time", fix=f"run it again for {suites[1]}")
    suite = read_suite(Path(suites[0])) if suites else None
    rest = [word for word in words if word not in suites]
    if not rest and suite is not None and suite.server and options.module is None and command is None:
        rest = [suite.locate_server()]
    with redirect_stdout_to_stderr(), ProgressDisplay(LISTING_STEP):
        target = resolve_target(rest, options.module, command)
    if rest:
        raise UsageError(f"{rest[0]!r} is unexpected", fix="name one server and one suite: shelf.eval.yaml")
    return asyncio.run(_EvalCommand(target, suite, options, words).run())


class _EvalCommand:
    """One run of the command."""

    def __init__(self, target: ServerTarget, suite: EvalSuite | None, options: Namespace, words: list[str]) -> None:
        self.target, self.suite, self.options, self.words = target, suite, options, words
        self.notes: list[str] = []
        in_ci = os.environ.get("CI", "").lower() in ("true", "1")
        self.is_replay = options.replay or (in_ci and not options.record)

    async def run(self) -> int:
        # One conversation stays open to the end, so that what the server mounts is started once.
        async with self._connect(self.options.client) as client:
            return await self._run(client)

    async def _run(self, client: Client) -> int:
        with redirect_stdout_to_stderr(), ProgressDisplay(LISTING_STEP):
            await self._wait_for_mounted(client)
            now = self.suite.now if self.suite is not None else None
            definitions = await fetch_definitions(self._connect, self.options.client, now)
        if self.options.draft:
            cases = self.suite.cases if self.suite is not None else ()
            show_stdout(*draft_suite(definitions, cases, next(iter(self.words), "")))
            return EXIT_OK
        if self.suite is None:
            raise UsageError("no suite is given", fix="name a *.eval.yaml file; --draft writes one")
        cases = self._choose_cases(self.suite)
        if not cases:
            return print_error(
                f"{self.suite.path} has no such cases\n  fix: add one, or leave the filters out", EXIT_NOTHING
            )
        drafted = [case.name for case in cases if case.prompt.startswith(DRAFT_PROMPT)]
        if drafted:
            count = format_count(len(drafted), "prompt")
            return print_error(
                f"{self.suite.path} still has {count} of the draft: case {drafted[0]!r}\n"
                "  fix: write what a person would say, and don't name the tool",
                EXIT_NOTHING,
            )
        self.notes += collect_suite_warnings(self.suite, definitions.facts.tools)
        self._warn(definitions, cases)
        return await self._run_cases(self.suite, cases, definitions, self._parse_model(self.suite))

    async def _wait_for_mounted(self, client: Client) -> None:
        """Wait until every mounted server is there: half a list would be measured as if it were the whole."""
        until = monotonic() + self.options.timeout
        while missing := await list_disconnected_servers(client):
            if monotonic() > until:
                names = ", ".join(f"{name} ({note})" for name, note in missing.items())
                raise PeerTimeout(f"not connected: {names}\n  fix: start it, or take it out of the file")
            await asyncio.sleep(MOUNTED_POLL_SECONDS)

    def _parse_model(self, suite: EvalSuite) -> ModelName:
        named = self.options.model or suite.model
        if not named:
            raise UsageError("no model is given", fix="add --model ollama:qwen3, or `model:` to the suite")
        return parse_model(named)

    def _choose_cases(self, suite: EvalSuite) -> list[EvalCase]:
        wanted, tags = set(self.options.case), set(self.options.tag)
        chosen = [
            case
            for case in suite.cases
            if (not wanted or case.name in wanted) and (not tags or not tags.isdisjoint(case.tags))
        ]
        return [replace(case, runs=self.options.runs) for case in chosen] if self.options.runs else chosen

    def _warn(self, definitions: Definitions, cases: list[EvalCase]) -> None:
        if len(definitions.tools) > MANY_TOOLS_THRESHOLD:
            count = len(definitions.tools)
            self.notes.append(f"{count} tools are more than most models take: let them search, Server(search='always')")
        if definitions.is_searched and self.options.tools != "real":
            self.notes.append(
                "this server is searched, and nothing runs: use --tools real, or --client 'defserve tooling' for all"
            )
        if self.options.tools == "canned" and any(t.result and t.result.is_real for case in cases for t in case.turns):
            raise UsageError("a case wants real results", fix="add --tools real, or write the result into the case")
        if self.is_replay and self.options.suggest:
            raise UsageError("a suggestion needs the model", fix="leave --replay out")
        for shown in definitions.renamed.items():
            self.notes.append("the model knows {} as {}: its API takes no other name".format(*shown))

    @asynccontextmanager
    async def _connect(self, name: str | None) -> AsyncGenerator[Client]:
        # What runs in an eval asks nobody.
        declining = Answers(ask=lambda message, schema: Decline)
        async with connect_target(self.target, self.options, answers=declining, name=name) as client:
            yield client

    async def _run_cases(
        self, suite: EvalSuite, cases: list[EvalCase], definitions: Definitions, model: ModelName
    ) -> int:
        parameters = ModelParameters(
            self.options.max_output_tokens,
            self.options.temperature,
            self.options.tool_choice,
            self.options.context if model.dialect == "ollama" else None,
        )
        runner = SuiteRunner(
            model,
            definitions,
            mode=self.options.tools,
            allow=self.options.allow,
            connect=self._connect,
            client_name=self.options.client,
            parameters=parameters,
        )
        if model.dialect == RANKER_DIALECT:
            runner.ask, runner.definitions = make_ranker_ask(), with_open_schemas(definitions)
            self.notes.append("the ranker is no model: a case that it gets wrong may be fine, so nothing is judged")
            return await self._measure(suite, [make_tools_only_case(case) for case in cases], runner)
        endpoint = None if self.is_replay else self._open_endpoint(model)
        path = Path(self.options.recording or make_recording_path(suite.path.parent, suite.stem, model))
        runner.recording = read_recording(path, [endpoint.address.key or ""] if endpoint is not None else [])
        runner.is_local = endpoint is None or not endpoint.address.is_home
        if endpoint is None:
            return await self._replay(suite, cases, runner)
        async with endpoint:
            runner.ask = endpoint.ask
            runner.recording.open_for_writing(definitions.make_recording_head(model))
            requests = runner.count_missing_requests(cases)
            show_stderr(_describe_cost(cases, requests, definitions))
            asks_more = self.options.suggest or self.options.baseline
            if asks_more:
                option = "--suggest" if self.options.suggest else "--baseline"
                show_stderr(f"{option} asks again, up to {self.options.max_tokens_total:,} tokens in all")
            try:
                return await self._measure(suite, cases, runner)
            finally:
                runner.recording.close()
                if asks_more:
                    show_stderr(f"{endpoint.budget.spent:,} tokens were spent")

    def _open_endpoint(self, model: ModelName) -> ModelEndpoint:
        address = resolve_model_address(model, self.options.url, self.options.key_env)
        budget = TokenBudget(self.options.max_tokens_total)
        return ModelEndpoint(DIALECTS[model.dialect], address, budget, self.options.answer_timeout)

    async def _replay(self, suite: EvalSuite, cases: list[EvalCase], runner: SuiteRunner) -> int:
        try:
            return await self._measure(suite, cases, runner)
        except StaleRecording as stale:
            recording = runner.recording
            assert recording is not None
            missing = [case for case in cases if case.name in stale.cases]
            head = runner.definitions.make_recording_head(runner.model)
            reasons = explain_stale_recording(recording.head, head, recording.cases, stale.cases)
            # A recording does not say where it was made. Without an address, the vendor would be asked.
            where = self.options.url or "URL"
            url = "" if runner.model.dialect == "ollama" and not self.options.url else f" --url {where}"
            words = " ".join([*self.words, f"--model {runner.model}{url}"])
            requests = format_count(runner.count_missing_requests(missing), "request")
            return print_error(
                f"stale: {'; '.join(reasons)}\n  fix: defserve eval {words} --record ({requests})", EXIT_STALE
            )

    async def _measure(self, suite: EvalSuite, cases: list[EvalCase], runner: SuiteRunner) -> int:
        waiting = nullcontext() if self.is_replay else ProgressDisplay("Asking the model")
        with redirect_stdout_to_stderr(), waiting:
            outcomes = group_outcomes(cases, await runner.run_suite(cases))
            gate = None
            if self.options.baseline:
                baseline = read_recording(Path(self.options.baseline))
                gate = await compare_with_baseline(runner, outcomes, baseline)
        report = make_report(
            suite, runner.model, runner.definitions, outcomes, stopped=runner.stopped, notes=self.notes, gate=gate
        )
        suggestion = None
        if self.options.suggest and runner.ask is not None:
            with redirect_stdout_to_stderr(), ProgressDisplay("Looking for a better description"):
                suggestion = await suggest_description(runner, outcomes, runner.ask)
            report["suggestion"] = suggestion_to_wire(suggestion)
        self._write_files(report)
        if self.options.json:
            show_stdout(JsonBlock(report))
        else:
            show_stdout(*report_page(report), *(suggestion_page(suggestion) if suggestion is not None else ()))
        return VERDICT_EXIT_CODES[report["verdict"]]

    def _write_files(self, report: Json) -> None:
        for path, text in ((self.options.junit, render_junit), (self.options.html, render_html)):
            if path:
                content = text(report)
                with explain_write_errors("name a file that you can write"):
                    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def _describe_cost(cases: list[EvalCase], requests: int, definitions: Definitions) -> str:
    runs = sum(case.runs for case in cases)
    each = estimate_request_tokens([list(definitions.tools), definitions.system]) + 20
    counts = f"{format_count(len(cases), 'case')}, {format_count(runs, 'run')}, {format_count(requests, 'request')}"
    return f"{counts}, about {requests * each:,} tokens"


def report_page(report: Json) -> Iterator[ScreenBlock]:
    """The report as a terminal shows it."""
    rows = [
        (
            case["name"],
            case["expected"],
            (format_tally(case), VERDICT_STYLES[case["verdict"]]),
            format_interval(case["low"], case["high"]),
            case["verdict"] or "",
            format_mistaken_calls(case),
        )
        for case in report["cases"]
    ]
    yield Table(
        ("CASE", "EXPECTED", "PASSED", "95 %", "VERDICT", "CALLED INSTEAD"), rows, fit=("CASE", "CALLED INSTEAD")
    )
    for case in report["cases"]:
        # The table has these, or the line about what stopped the suite.
        in_table = {NOT_RUN_REASON, *(f"called {called} instead of {case['expected']}" for called in case["instead"])}
        for reason in [reason for reason in case["reasons"] if reason not in in_table][:1]:
            yield StyledLine((f"{case['name']}: ", "faint"), reason)
    for pair in report["lost"]:
        yield StyledLine(format_confused_pair(pair))
    for name in report["lost_by_search"]:
        yield StyledLine(f"lost by search: {name}: no search of the model found the tool")
    for note in report["notes"]:
        yield StyledLine(("note:", "faint"), f" {note}")
    if report["stopped"]:
        problem, *fixes = report["stopped"].splitlines()
        yield StyledLine(("stopped:", "bad"), f" {problem}")
        yield from map(StyledLine, fixes)
    if report["gate"] is not None:
        yield from map(StyledLine, iter_gate_lines(report["gate"]))
    tokens = report["tokens"]
    money = f"; {tokens['money']:.4f} by the suite's prices" if tokens["money"] is not None else ""
    yield StyledLine(f"{format_score(report)}; definitions: about {tokens['definitions']:,} tokens a request{money}")


def suggestion_page(made: Suggestion) -> Iterator[ScreenBlock]:
    """A suggestion. Only figures of the held-out half are shown."""
    if made.problem:
        yield StyledLine(("no suggestion:", "warning"), f" {made.problem}")
        return
    figures = f"{made.old.passed}/{made.old.runs} to {made.new.passed}/{made.new.runs} (p = {made.p:.3f})"
    yield StyledLine(f"held-out half, {format_count(made.cases, 'case')}: {figures}")
    if made.looks > 1:
        yield StyledLine(f"note: this half was looked at {made.looks} times; each look makes its figures less certain")
    yield from map(StyledLine, made.diff)
