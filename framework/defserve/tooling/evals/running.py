"""Puts cases to a model and judges what it does: one conversation a run, four at once.

    definitions ─┐
    messages ────┴→ request → recording, or endpoint → answer → replies to its calls → next turn, or verdict

A replay takes every answer from the recording and opens nothing. Otherwise a run that is recorded whole is taken from
there, and any other is asked for and written down. A tool of the server runs only in `real`, and only if it's marked
safe or was allowed by name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from defserve.client.client import Client
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, MethodNotFound, PeerError
from defserve.protocols.mgp.tool_catalogue import CALL_TOOL, DISCOVER_TOOL, EVICT_TOOL, REQUEST_TOOL, SESSION_TOOL
from defserve.tooling.evals.cases import EvalCase, EvalTurn
from defserve.tooling.evals.dialects import (
    DIALECTS,
    NO_MODEL_PARAMETERS,
    ConversationMessage,
    ModelMessage,
    ModelParameters,
    ModelRequest,
    PersonMessage,
    ToolRepliesMessage,
    ToolReply,
    clean_endpoint_text,
    make_name_map,
)
from defserve.tooling.evals.endpoint import BudgetSpent, EndpointFailure, FinalRefusal, ModelName
from defserve.tooling.evals.judging import Judgement, ModelAnswer, ModelCall, Tally, ToolFacts, judge_turn
from defserve.tooling.evals.recordings import (
    RecordedAnswer,
    Recording,
    RecordingHead,
    StaleRecording,
    compute_model_request_key,
)
from defserve.tooling.listing import check_listed_items

Json: TypeAlias = dict[str, Any]
ToolMode: TypeAlias = Literal["canned", "dry", "real"]
RunStatus: TypeAlias = Literal["passed", "failed", "missing"]

CONCURRENT_RUNS: Final = 4
MAX_REQUESTS: Final = 8
"""Requests of one run."""
MANY_TOOLS_THRESHOLD: Final = 128
MAX_RESULT_LENGTH: Final = 50_000
METHOD_NOT_FOUND: Final = MethodNotFound.code
NOT_RUN_REASON: Final = "not run"
NOT_EXECUTED: Final = "not executed in an eval"
SEARCH_TOOLS: Final = frozenset((DISCOVER_TOOL, REQUEST_TOOL, SESSION_TOOL, EVICT_TOOL))
WHOLE_LIST_CLIENT: Final = "defserve tooling"

Connect: TypeAlias = Callable[[str | None], AbstractAsyncContextManager[Client]]
"""A client of the server, which calls itself by this name."""
Ask: TypeAlias = Callable[[ModelRequest], Awaitable[ModelAnswer]]


# -- What a model is given: the tools as a client sees them, and the server's instructions.


@dataclass(frozen=True, slots=True)
class Definitions:
    """`tools` are as the model gets them. `real_names` maps those names back. `facts` knows every tool there is."""

    system: str
    tools: tuple[Json, ...]
    facts: ToolFacts
    real_names: Mapping[str, str] = field(default_factory=dict[str, str])
    risks: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_searched(self) -> bool:
        return any(tool["name"] == DISCOVER_TOOL for tool in self.tools)

    @property
    def renamed(self) -> dict[str, str]:
        """Tool → its name for the model, where that is another."""
        return {real: shown for shown, real in self.real_names.items() if real != shown}

    def make_recording_head(self, model: ModelName) -> RecordingHead:
        return RecordingHead(model, self.system, self.tools)

    def with_recorded_definitions(self, head: RecordingHead) -> Definitions:
        """The definitions of another recording. How tools are marked is not in it, and stays as it is now."""
        tools = {self.real_names.get(str(tool["name"]), str(tool["name"])): tool for tool in head.tools}
        return replace(self, system=head.system, tools=head.tools, facts=self.facts._replace(tools=tools))

    def with_description(self, tool: str, description: str) -> Definitions:
        shown = next((shown for shown, real in self.real_names.items() if real == tool), tool)
        changed = tuple({**each, "description": description} if each["name"] == shown else each for each in self.tools)
        return replace(self, tools=changed)


async def list_definitions(client: Client, whole: Sequence[Json] | None = None, now: str | None = None) -> Definitions:
    """What the server of this client shows a model. `whole` is every tool, if a search hides some of them."""
    listed = [tool for tool in check_listed_items("tools", await client.tools()) if _is_for_models(tool)]
    names = make_name_map([str(tool["name"]) for tool in listed])
    known = {str(tool["name"]): tool for tool in (*(whole or ()), *listed)}
    risks = {name: parse_tool_security(name, tool).risk for name, tool in known.items()}
    safe = frozenset(name for name, risk in risks.items() if risk == "safe") | (SEARCH_TOOLS & known.keys())
    said = [client.instructions or "", f"Today is {now}." if now else ""]
    return Definitions(
        "\n\n".join(filter(None, said)),
        tuple(_shape(tool, names[str(tool["name"])]) for tool in listed),
        ToolFacts(known, safe),
        {shown: real for real, shown in names.items()},
        risks,
    )


def _shape(tool: Json, name: str) -> Json:
    told = {"name": name, "description": tool.get("description") or ""}
    return {**told, "inputSchema": tool.get("inputSchema") or {"type": "object", "properties": {}}}


def _is_for_models(tool: Json) -> bool:
    """Hosts do not show models what is for views alone."""
    audience = object_or_empty(object_or_empty(tool.get("_meta")).get("ui")).get("visibility")
    return not is_array(audience) or "model" in audience


async def fetch_definitions(connect: Connect, client_name: str | None, now: str | None) -> Definitions:
    """The definitions that a client of this name is shown."""
    async with connect(client_name) as client:
        found = await list_definitions(client, now=now)
        if not found.is_searched:
            return found
        async with connect(WHOLE_LIST_CLIENT) as whole:
            return await list_definitions(client, await whole.tools(), now)


# -- One run.


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of one run of a case. `expected` is what was expected where it was judged, `called` what came."""

    case: str
    run: int | str
    status: RunStatus
    expected: str = ""
    called: str = ""
    reason: str = ""
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    lost_by_search: bool = False


@dataclass(slots=True)
class SuiteRunner:
    """Runs the cases of a suite. Without `ask` it replays; without a `recording` it writes nothing."""

    model: ModelName
    definitions: Definitions
    recording: Recording | None = None
    ask: Ask | None = None
    mode: ToolMode = "canned"
    allow: Sequence[str] = ()
    connect: Connect | None = None
    client_name: str | None = None
    parameters: ModelParameters = NO_MODEL_PARAMETERS
    is_local: bool = True
    stopped: str = ""
    """Why the rest was not run."""

    def count_missing_requests(self, cases: Iterable[EvalCase]) -> int:
        """The requests that a run would make now, if each turn takes one."""
        return sum(
            len(case.turns)
            for case in cases
            for run in range(1, case.runs + 1)
            if self.recording is None or self.recording.find_answer(self._first_key(case, run)) is None
        )

    async def run_suite(self, cases: Sequence[EvalCase]) -> list[RunOutcome]:
        """Every run of every case. Raises StaleRecording in a replay, with all cases that are not recorded."""
        longest = max((case.runs for case in cases), default=0)
        wanted = [(case, run) for run in range(1, longest + 1) for case in cases if run <= case.runs]
        if self.ask is None:
            return await self._replay_runs(wanted)
        room = asyncio.Semaphore(CONCURRENT_RUNS)

        async def run_in_turn(case: EvalCase, run: int) -> RunOutcome:
            async with room:
                return await self.run_case(case, run)

        return list(await asyncio.gather(*(run_in_turn(case, run) for case, run in wanted)))

    async def _replay_runs(self, wanted: Iterable[tuple[EvalCase, int]]) -> list[RunOutcome]:
        outcomes, stale = list[RunOutcome](), dict[str, None]()
        for case, run in wanted:
            try:
                outcomes.append(await self.run_case(case, run))
            except StaleRecording:
                stale[case.name] = None
        if stale:
            raise StaleRecording(*stale)
        return outcomes

    async def run_case(self, case: EvalCase, run: int | str, definitions: Definitions | None = None) -> RunOutcome:
        """One run. From the recording if it is whole there, else from the endpoint. Raises StaleRecording."""
        given = definitions or self.definitions
        if self.recording is not None or self.ask is None:
            try:
                return await self._converse(case, run, given, is_live=False)
            except StaleRecording:
                if self.ask is None:
                    raise
        try:
            return await self._converse(case, run, given, is_live=True)
        except (EndpointFailure, PeerError) as error:
            return RunOutcome(case.name, run, "missing", reason=str(error))
        except (FinalRefusal, BudgetSpent) as error:
            self.stopped = self.stopped or str(error)
            return RunOutcome(case.name, run, "missing", reason=NOT_RUN_REASON)

    async def _converse(self, case: EvalCase, run: int | str, given: Definitions, *, is_live: bool) -> RunOutcome:
        async with AsyncExitStack() as stack:
            client = None
            if is_live and self.mode != "canned" and self.connect is not None:
                # A conversation of its own: what one run loads into its list, another must not see.
                client = await stack.enter_async_context(self.connect(self.client_name))
            conversation = _Conversation(self, case, run, given, client, is_live)
            return await conversation.run_turns()

    async def find_or_ask(
        self, request: ModelRequest, case: EvalCase, run: int | str, is_live: bool
    ) -> tuple[str, RecordedAnswer | None, ModelAnswer]:
        """The key of a request, what was recorded for it, and the answer. Raises StaleRecording, EndpointFailure."""
        key = compute_model_request_key(self.model.dialect, request, run)
        if is_live and self.ask is not None:
            return key, None, await self.ask(request)
        recorded = self.recording.find_answer(key) if self.recording is not None else None
        if recorded is None:
            raise StaleRecording(case.name)
        return key, recorded, recorded.answer

    def make_request(self, messages: Sequence[ConversationMessage], given: Definitions) -> ModelRequest:
        return ModelRequest(self.model.name, given.system, tuple(messages), given.tools, self.parameters, self.is_local)

    def _first_key(self, case: EvalCase, run: int) -> str:
        request = self.make_request(_make_first_messages(case), self.definitions)
        return compute_model_request_key(self.model.dialect, request, run)

    def can_run(self, tool: str) -> bool:
        """Whether a call may really run: safe tools, and those that were allowed. Dangerous ones never by a pattern."""
        risk = self.definitions.risks.get(tool, "dangerous")
        if tool in self.definitions.facts.safe:
            return True
        return any(tool == name or (risk != "dangerous" and fnmatchcase(tool, name)) for name in self.allow)


def _make_first_messages(case: EvalCase) -> list[ConversationMessage]:
    given: list[ConversationMessage] = [
        PersonMessage(message.text) if message.role == "user" else ModelMessage(ModelAnswer(message.text))
        for message in case.messages
    ]
    return [*given, PersonMessage(case.turns[0].say)] if case.turns[0].say else given


class _Conversation:
    """One run of one case, from its first message to its verdict."""

    def __init__(
        self,
        runner: SuiteRunner,
        case: EvalCase,
        run: int | str,
        given: Definitions,
        client: Client | None,
        is_live: bool,
    ) -> None:
        self.runner, self.case, self.run, self.given = runner, case, run, given
        self.client, self.is_live = client, is_live
        self.messages = _make_first_messages(case)
        self.requests = self.input_tokens = self.output_tokens = 0
        self.searches: list[str] = []
        self.rejected: ToolReply | None = None
        """In a dry run, what the server says about a call that it would not take."""

    async def run_turns(self) -> RunOutcome:
        judgement = Judgement(False, "none")
        for number, turn in enumerate(self.case.turns, 1):
            if number > 1 and turn.say:
                self.messages.append(PersonMessage(turn.say))
            judgement = await self._run_turn(number, turn)
            if not judgement.passed or number == len(self.case.turns):
                return self._make_outcome(turn, judgement)
        raise AssertionError("a case has a turn")

    def _make_outcome(self, turn: EvalTurn, judgement: Judgement) -> RunOutcome:
        wanted = [call.tool for call in turn.expect.calls]
        lost = bool(self.searches) and not judgement.passed and bool(wanted)
        lost = lost and not any(json.dumps(tool) in text for tool in wanted for text in self.searches)
        return RunOutcome(
            self.case.name,
            self.run,
            "passed" if judgement.passed else "failed",
            judgement.called if judgement.called in wanted else turn.expect.label,
            judgement.called,
            judgement.reason,
            self.requests,
            self.input_tokens,
            self.output_tokens,
            lost,
        )

    async def _run_turn(self, number: int, turn: EvalTurn) -> Judgement:
        """Ask until the model has done what is expected, or something else. Mostly that is one request."""
        answers: list[ModelAnswer] = []
        # Only tools that really run bring a model further within a turn.
        goes_on = self.runner.mode == "real" and turn.result is None
        while True:
            if self.requests == MAX_REQUESTS:
                return Judgement(False, "none", f"stopped after {MAX_REQUESTS} requests")
            answer = await self._ask(number, turn, goes_on)
            answers.append(answer)
            judgement = judge_turn(
                turn.expect,
                self.case,
                answers,
                self.given.facts,
                DIALECTS[self.runner.model.dialect].switch if self.runner.model.dialect in DIALECTS else "",
            )
            if judgement.passed and self.rejected is not None:
                return Judgement(False, judgement.called, f"tools/validate: {self.rejected.text}")
            is_harmless = all(call.name in self.given.facts.safe for call in answer.calls)
            if judgement.passed or not goes_on or not answer.calls or not is_harmless:
                return judgement

    async def _ask(self, number: int, turn: EvalTurn, goes_on: bool) -> ModelAnswer:
        """One request. Returns the answer with the real names of tools."""
        request = self.runner.make_request(self.messages, self.given)
        key, recorded, answer = await self.runner.find_or_ask(request, self.case, self.run, self.is_live)
        self.requests += 1
        self.input_tokens += answer.usage.input or 0
        self.output_tokens += answer.usage.output or 0
        meant = [self._resolve_call(call) for call in answer.calls]
        is_dry = self.runner.mode == "dry" and turn.result is None
        asks_server = goes_on or is_dry or (turn.result is not None and turn.result.is_real)
        if turn.result is None and not asks_server:
            replies: tuple[ToolReply, ...] = ()
        elif recorded is not None and asks_server:
            replies = recorded.replies
        else:
            pairs = zip(answer.calls, meant, strict=True)
            replies = tuple([await self._reply(sent, call, turn, is_dry) for sent, call in pairs])
        listed = recorded.tools if recorded is not None else await self._list_again(replies)
        if recorded is None and self.runner.recording is not None:
            stored = RecordedAnswer(replace(answer, raw=None), replies, self.case.name, listed)
            self.runner.recording.store_answer(key, self.case.name, self.run, number, stored)
        self.messages.append(ModelMessage(answer))
        if is_dry:
            self.rejected = next((reply for reply in replies if reply.is_error), None)
            replies = ()
        if replies:
            self.messages.append(ToolRepliesMessage(replies))
            self.searches += [
                reply.text for reply, call in zip(replies, meant, strict=False) if call.name == DISCOVER_TOOL
            ]
        if listed is not None:
            self.given = replace(self.given, tools=listed)
        return replace(answer, calls=tuple(meant))

    async def _list_again(self, replies: Sequence[ToolReply]) -> tuple[Json, ...] | None:
        """What the model is shown next, if a search has loaded tools into this conversation's list."""
        if self.client is None or not replies or not self.given.is_searched:
            return None
        tools = (await list_definitions(self.client)).tools
        return None if tools == self.given.tools else tools

    def _resolve_call(self, call: ModelCall) -> ModelCall:
        """The call by its real name. A call through the search counts as one of the tool inside it."""
        name = self.given.real_names.get(call.name, call.name)
        if name == CALL_TOOL and call.arguments is not None:
            inner, arguments = call.arguments.get("name"), call.arguments.get("arguments", {})
            if isinstance(inner, str):
                return ModelCall(inner, arguments if is_object(arguments) else None, call.id)
        return call._replace(name=name)

    async def _reply(self, sent: ModelCall, call: ModelCall, turn: EvalTurn, is_dry: bool) -> ToolReply:
        wanted = {each.tool for each in turn.expect.calls}
        if call.name not in self.given.facts.tools:
            return ToolReply(sent, f"there is no tool {call.name!r}", is_error=True)
        if turn.result is not None and not turn.result.is_real:
            return ToolReply(sent, format_result(turn.result.value)) if call.name in wanted else _refuse(sent)
        if is_dry and self.client is not None:
            return await _validate(self.client, sent, call)
        if self.client is None or self.runner.mode != "real" or not self.runner.can_run(call.name):
            return _refuse(sent)
        try:
            result = await self.client.call_raw(call.name, dict(call.arguments or {}))
        except DefserveError as error:
            return ToolReply(sent, clean_endpoint_text(str(error)), is_error=True)
        return ToolReply(sent, format_tool_result(result), is_error=result.get("isError") is True)


async def _validate(client: Client, sent: ModelCall, call: ModelCall) -> ToolReply:
    """What the server thinks of a call that is not made. A server without `tools/validate` thinks nothing."""
    try:
        answer = await client.request("tools/validate", {"name": call.name, "arguments": dict(call.arguments or {})})
    except PeerError as error:
        return ToolReply(sent, clean_endpoint_text(error.message), is_error=error.code != METHOD_NOT_FOUND)
    found = [object_or_empty(each).get("reason") for each in answer.get("problems") or ()]
    return ToolReply(sent, clean_endpoint_text(str(found[0])) if found else "valid", is_error=bool(found))


def _refuse(call: ModelCall) -> ToolReply:
    return ToolReply(call, NOT_EXECUTED, is_error=True)


def format_result(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def format_tool_result(result: Json) -> str:
    """What a host shows a model of a tool's result: its texts, or else its value."""
    texts = [
        str(block.get("text"))
        for block in result.get("content") or ()
        if is_object(block) and block.get("type") == "text"
    ]
    text = "\n".join(texts) if texts else json.dumps(result.get("structuredContent"), ensure_ascii=False)
    return clean_endpoint_text(text[:MAX_RESULT_LENGTH])


# -- What a whole suite came to.


class CaseOutcome(NamedTuple):
    """All runs of a case."""

    case: EvalCase
    runs: tuple[RunOutcome, ...]

    @property
    def tally(self) -> Tally:
        judged = [run for run in self.runs if run.status != "missing"]
        return Tally(sum(run.status == "passed" for run in judged), len(judged))

    @property
    def missing_count(self) -> int:
        return sum(run.status == "missing" for run in self.runs)


def group_outcomes(cases: Iterable[EvalCase], outcomes: Iterable[RunOutcome]) -> list[CaseOutcome]:
    """Outcomes by case, in the order of the suite."""
    wanted = list(cases)
    by_case: dict[str, list[RunOutcome]] = {case.name: [] for case in wanted}
    for outcome in outcomes:
        by_case[outcome.case].append(outcome)
    return [CaseOutcome(case, tuple(by_case[case.name])) for case in wanted]


async def tally_other_recording(
    runner: SuiteRunner, cases: Iterable[EvalCase], recording: Recording
) -> dict[str, Tally]:
    """The tallies of another recording, by its own definitions. Cases that it does not have are left out."""
    assert recording.head is not None
    older = replace(
        runner,
        definitions=runner.definitions.with_recorded_definitions(recording.head),
        recording=recording,
        ask=None,
    )
    tallies: dict[str, Tally] = {}
    for case in cases:
        outcomes: list[RunOutcome] = []
        for run in range(1, case.runs + 1):
            try:
                outcomes.append(await older.run_case(case, run))
            except StaleRecording:
                break
        if outcomes:
            tallies[case.name] = CaseOutcome(case, tuple(outcomes)).tally
    return tallies
