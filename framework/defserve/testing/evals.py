"""Evals as tests: the fixture `model`, the mark `eval`, and suites that pytest collects.

A test run asks nobody: answers come from recordings, which are committed. `--eval-record` asks for what is missing. A
case that is neither clearly good nor clearly bad is skipped, as in JUnit files of `defserve eval`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest

from defserve.client.answers import Answers, Decline
from defserve.client.client import Client
from defserve.errors import DefserveError, UsageError
from defserve.tooling.evals.cases import (
    DEFAULT_MIN_PASS_RATE,
    DEFAULT_RUNS,
    EvalCase,
    EvalSuite,
    ExpectedCall,
    collect_suite_warnings,
    read_suite,
)
from defserve.tooling.evals.dialects import DIALECTS, PersonMessage
from defserve.tooling.evals.endpoint import ModelEndpoint, ModelName, parse_model, resolve_model_address
from defserve.tooling.evals.judging import ModelAnswer, ModelCall, Tally, ToolFacts, find_call_problem, judge_tally
from defserve.tooling.evals.recordings import (
    RecordedAnswer,
    StaleRecording,
    compute_model_request_key,
    explain_stale_recording,
    make_recording_path,
    read_recording,
)
from defserve.tooling.evals.running import CaseOutcome, SuiteRunner, fetch_definitions
from defserve.tooling.loading import load_without_serving

# -- Matchers, for `answer.called(…)`. In a suite they are `{contains: lem}`.


def Contains(value: Any) -> Mapping[str, Any]:
    """A text (in any case) or a list that has it."""
    return {"contains": value}


def OneOf(*values: Any) -> Mapping[str, Any]:
    """Any of these values or matchers."""
    return {"one_of": list(values)}


def Like(text: str) -> Mapping[str, Any]:
    """The same text but for case, spaces and `,./-_*^`."""
    return {"like": text}


Absent: Final[Mapping[str, Any]] = {"absent": True}
"""Not given, or the schema's default."""


@dataclass(frozen=True, slots=True)
class EvalAnswer:
    """What a model answered. Its methods fail the run."""

    text: str
    calls: tuple[ModelCall, ...]
    _facts: ToolFacts

    def called(self, tool: str, /, **arguments: Any) -> ModelCall:
        """The call of this tool whose arguments fit. Fails the run if there is none."""
        problem = f"{tool} was not called, but {', '.join(call.name for call in self.calls) or 'nothing'}"
        for call in self.calls:
            if call.name == tool:
                problem = find_call_problem(ExpectedCall(tool, arguments), call, self._facts.tools) or ""
                if not problem:
                    return call
        raise AssertionError(problem)

    def not_called(self, *tools: str) -> None:
        """Fails the run if one of these was called; without a name, if anything was."""
        for call in self.calls:
            if not tools or call.name in tools:
                raise AssertionError(f"{call.name} was called")


class EvalModel:
    """A model with the tools of the server under test. It remembers which run it is in."""

    def __init__(self, runner: SuiteRunner, name: str, loop: asyncio.Runner) -> None:
        self._runner, self._name, self._loop = runner, name, loop
        self.run = 1
        self._asked = 0

    def begin_run(self, number: int) -> None:
        self.run, self._asked = number, 0

    def ask(self, prompt: str) -> EvalAnswer:
        """The answer to one message. No tool runs."""
        self._asked += 1
        return self._loop.run(self._ask(prompt))

    async def _ask(self, prompt: str) -> EvalAnswer:
        runner = self._runner
        request = runner.make_request([PersonMessage(prompt)], runner.definitions)
        key = compute_model_request_key(runner.model.dialect, request, f"{self.run}.{self._asked}")
        assert runner.recording is not None
        recorded = runner.recording.find_answer(key)
        if recorded is None:
            if runner.ask is None:
                raise StaleRecording(self._name)
            answer = replace(await runner.ask(request), raw=None)
            recorded = RecordedAnswer(answer, (), self._name)
            runner.recording.store_answer(key, self._name, self.run, self._asked, recorded)
        return self._make_answer(recorded.answer)

    def _make_answer(self, answer: ModelAnswer) -> EvalAnswer:
        names = self._runner.definitions.real_names
        calls = tuple(call._replace(name=names.get(call.name, call.name)) for call in answer.calls)
        return EvalAnswer(answer.text, calls, self._runner.definitions.facts)

    def describe_stale(self, cases: tuple[str, ...]) -> str:
        return _describe_stale(self._runner, cases)


def repeat_and_judge_test(
    item: pytest.Function, runs: int = DEFAULT_RUNS, least: float = DEFAULT_MIN_PASS_RATE
) -> None:
    """Call a test once a run, and judge all runs together."""
    model: Any = item.funcargs["model"]
    arguments = {name: item.funcargs[name] for name in signature(item.obj).parameters if name in item.funcargs}
    failures: list[AssertionError] = []
    for number in range(1, runs + 1):
        model.begin_run(number)
        try:
            item.obj(**arguments)
        except AssertionError as error:
            failures.append(error)
        except StaleRecording as stale:
            pytest.fail(model.describe_stale(stale.cases), pytrace=False)
        except DefserveError as error:
            pytest.fail(f"incomplete: {error}", pytrace=False)
    _report(Tally(runs - len(failures), runs), least, [str(error).splitlines()[0] for error in failures if str(error)])


def _report(tally: Tally, least: float, reasons: list[str], missing: int = 0) -> None:
    verdict = judge_tally(tally, least, missing)
    told = f"{verdict}: {tally.passed} of {tally.runs} runs passed{f'; {reasons[0]}' if reasons else ''}"
    if verdict == "unclear":
        pytest.skip(told)
    if verdict != "pass":
        pytest.fail(told, pytrace=False)


# -- Which model, which server, which recording.


def get_model_name(config: pytest.Config) -> str:
    return str(config.getoption("--eval-model") or config.getini("eval_model") or "")


@contextmanager
def open_eval_model(
    config: pytest.Config, server: Any, folder: Path, stem: str, name: str
) -> Generator[EvalModel, None, None]:
    """The model of a test: its answers are in `<test file>.<model>.jsonl`, beside it."""
    if not (named := get_model_name(config)):
        pytest.fail('no model is set\n  fix: eval_model = "ollama:qwen3" in [tool.pytest.ini_options]', pytrace=False)
    with asyncio.Runner() as loop, open_runner(config, server, parse_model(named), folder, stem, None, loop) as runner:
        yield EvalModel(runner, name, loop)


@contextmanager
def open_runner(
    config: pytest.Config,
    server: Any,
    model: ModelName,
    folder: Path,
    stem: str,
    now: str | None,
    loop: asyncio.Runner,
) -> Generator[SuiteRunner, None, None]:
    """A runner that replays, or with `--eval-record` also asks."""

    def connect(client_name: str | None) -> AbstractAsyncContextManager[Client]:
        about = {"info": {"name": client_name, "version": "0"}} if client_name else {}
        return server.connect(answers=Answers(ask=lambda message, schema: Decline), **about)

    definitions = loop.run(fetch_definitions(connect, None, now))
    runner = SuiteRunner(model, definitions, connect=connect)
    path = make_recording_path(folder, stem, model)
    if not config.getoption("--eval-record"):
        runner.recording = read_recording(path)
        yield runner
        return
    address = resolve_model_address(model, config.getoption("--eval-url"), config.getoption("--eval-key-env"))
    endpoint = ModelEndpoint(DIALECTS[model.dialect], address)
    runner.recording = read_recording(path, [address.key or ""])
    runner.recording.open_for_writing(definitions.make_recording_head(model))
    runner.is_local = not address.is_home
    loop.run(endpoint.__aenter__())
    runner.ask = endpoint.ask
    try:
        yield runner
    finally:
        runner.recording.close()
        loop.run(endpoint.__aexit__(None, None, None))


def _describe_stale(runner: SuiteRunner, cases: tuple[str, ...]) -> str:
    recording = runner.recording
    assert recording is not None
    head = runner.definitions.make_recording_head(runner.model)
    reasons = explain_stale_recording(recording.head, head, recording.cases, cases)
    return f"stale: {'; '.join(reasons)}\n  fix: run pytest with --eval-record, and commit {recording.path.name}"


# -- Suites as files of tests: a case is a test.

EXAMPLE_MODEL: Final = ModelName("chat", "scripted")
"""The model of recordings that come with a new project: a script. It cannot be asked again when the tools change."""
EXAMPLE_IS_STALE: Final = (
    "a script made this recording (chat:scripted), for other tools; "
    "fix: name a model in the suite (model: ollama:qwen3), and record it: pytest --eval-record"
)


def can_collect_suite(path: Path, config: pytest.Config) -> bool:
    """Whether a suite is for pytest: it names its server, and a model is known."""
    try:
        suite = read_suite(path)
    except UsageError:
        return True  # which says what is wrong with it
    return suite.server is not None and bool(suite.model or get_model_name(config))


class EvalFile(pytest.File):
    """A `*.eval.yaml` file."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            suite = read_suite(self.path)
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        for case in suite.cases:
            made: Any = EvalItem
            yield made.from_parent(self, name=case.name, suite=suite, case=case)


class EvalItem(pytest.Item):
    """One case of a suite."""

    def __init__(self, *, suite: EvalSuite, case: EvalCase, **rest: Any) -> None:
        super().__init__(**rest)  # pyright: ignore[reportUnknownMemberType] - pytest's own
        self.suite, self.case = suite, case

    def runtest(self) -> None:
        suite = self.suite
        model = parse_model(get_model_name(self.config) or suite.model or "")
        server = load_without_serving(suite.locate_server())
        with (
            asyncio.Runner() as loop,
            open_runner(self.config, server, model, suite.path.parent, suite.stem, suite.now, loop) as runner,
        ):
            collect_suite_warnings(replace(suite, cases=(self.case,)), runner.definitions.facts.tools)
            try:
                outcomes = loop.run(runner.run_suite([self.case]))
            except StaleRecording as stale:
                if model == EXAMPLE_MODEL and runner.recording is not None and runner.recording.head is not None:
                    pytest.skip(EXAMPLE_IS_STALE)
                raise UsageError(_describe_stale(runner, stale.cases)) from None
        done = CaseOutcome(self.case, tuple(outcomes))
        reasons = [run.reason for run in outcomes if run.status != "passed"]
        _report(done.tally, self.case.least, reasons, done.missing_count)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, DefserveError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"eval: {self.name}"
