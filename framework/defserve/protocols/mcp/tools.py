"""MCP tools (server features: tools): declaring, listing, validating and calling them.

A tool that fails gives a result, which the model reads. Only a faulty request is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

from defserve.binding.results import (
    NO_STRUCTURED_CONTENT,
    WRAPPED_RESULT_KEY,
    EmittedPart,
    PackedResult,
    ResultMismatch,
    ResultPacker,
    StructuredOption,
    pack_untyped_result,
)
from defserve.core.call import Call, InnerCall
from defserve.core.extension import Extension, Handler, StagePipeline, enter_stage_context_managers
from defserve.core.json_values import is_deeper_than, is_object
from defserve.core.messages import MAX_REPLY_DEPTH, Params
from defserve.core.registry import Registry
from defserve.errors import BadArguments, LimitExceeded, ProtocolError, Rejected, StepUpRequired, TimedOut, UsageError
from defserve.limits import Limits
from defserve.protocols.mcp import items
from defserve.protocols.mcp.errors import (
    DEFSERVE_NAMESPACE,
    RequestTrace,
    UnknownTool,
    build_tool_failure,
    get_trace_id,
    is_missing_capability_error,
    read_meta,
    read_optional_object_param,
    read_text_param,
    unwrap_exception_group,
)
from defserve.protocols.mcp.function import EmittedParts, FindProvider, Function, find_no_provider
from defserve.protocols.mcp.items import (
    ANSWER_PARAMS,
    TOOL_ANNOTATION_RULES,
    Item,
    ItemOptions,
    ListMethod,
    WaitForLateItems,
    check_execution_options,
    check_item_options,
    choose_item_name,
    find_item,
    read_input_answers,
)
from defserve.protocols.mcp.lifecycle import Dialect, get_dialect

RETURNS_META_KEY = DEFSERVE_NAMESPACE + "returns"
TAGS_META_KEY = DEFSERVE_NAMESPACE + "tags"
WRAPPED_META_KEY = DEFSERVE_NAMESPACE + "wrapped"
"""Marks a result whose structured content is wrapped, so that our client can unwrap it."""

QUICK = 0.01
"""Seconds. The limit is not looked up for a check that takes less."""

NO_TASK = (None, None, None, 0, "now")
"""The options of a tool that does not run as a task."""

TextOption: TypeAlias = Callable[[Any], str] | str | Literal[False] | None
"""The text beside structured content: of a function, of a template, none (False), or a copy (None)."""

NO_HEADERS: Mapping[tuple[str, ...], str] = {}


class ToolOptions(ItemOptions):
    """Everything a tool may say about itself, from decorator to registry.

    `annotations` are MCP's hints (`readOnlyHint`, …). `structured` forces structured content on or off;
    with "bare", content that is not an object is not wrapped, and clients before 2026-07-28 get only its text.
    `text` is what stands beside structured content as text: a copy of it (None), nothing (False), a template
    ("{total} found") or what a function makes of the returned value.
    `schema` replaces the schema made from the signature. `tags` are its categories and `keywords` more words, both for
    searches. `security` says what the tool may do; it is read by the extension that enforces it. `task` lets it run as
    a task; `ttl`, `poll`, `retry` and `begin` are for tasks alone: see `TaskOptions`.
    `app` is the view that shows its results: its function, or its `ui://` URI. `visible_to` says who may use it, the
    "model" or views ("app"); hosts follow it.
    """

    annotations: Mapping[str, Any] | None = None
    structured: StructuredOption = None
    text: TextOption = None
    schema: Mapping[str, Any] | None = None
    tags: Sequence[str] = ()
    keywords: Sequence[str] = ()
    security: Any = None
    task: Literal["optional", "required"] | None = None
    ttl: float | None = None
    poll: float | None = None
    retry: int = 0
    begin: Literal["now", "later"] = "now"
    app: Any = None
    visible_to: Literal["model", "app"] | None = None


class Tool(Item[ToolOptions]):
    """A function with a name, ready to be listed and called."""

    __slots__ = ("returns", "_param_headers", "_write_text")

    kind = "tool"

    def __init__(self, name: str, options: ToolOptions, function: Function, returns: ResultPacker, owner: Any) -> None:
        super().__init__(name, options, function, owner)
        self.returns = returns
        self._param_headers: Mapping[tuple[str, ...], str] | None = None
        self._write_text: Callable[[Any, Any], list[Params]] | None = None
        if options.text is not None:
            from defserve.protocols.mcp.tool_options import make_text_writer

            self._write_text = make_text_writer(self)

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        options: ToolOptions | None = None,
        *,
        find_provider: FindProvider = find_no_provider,
        owner: Any = None,
    ) -> Tool:
        """Read a function into a tool. Raises UsageError for anything that could not be called."""
        options = options or ToolOptions()
        bound = Function(function, find_provider, inline=options.inline, schema=options.schema)
        check_item_options(options, bound.signature, TOOL_ANNOTATION_RULES)
        name = choose_item_name("tool", options.name, bound.signature)
        check_execution_options(f"tool {name!r}", options, bound.signature)
        return cls(name, options, bound, ResultPacker.from_signature(bound.signature, options.structured), owner)

    def copy_as(self, name: str) -> Tool:
        """The same tool under another name, for mounting."""
        renamed = Tool(name, replace(self.options, name=name), self.function, self.returns, self.owner)
        renamed.facets, renamed.is_dangerous = self.facets, self.is_dangerous
        return renamed

    @property
    def param_headers(self) -> Mapping[tuple[str, ...], str]:
        """The arguments that clients repeat as HTTP headers. Raises UsageError if the schema breaks their rules."""
        if self._param_headers is None:
            from defserve.protocols.mcp.tool_options import find_param_headers

            try:
                self._param_headers = find_param_headers(self.function.arguments.schema)
            except ValueError as error:
                raise UsageError(f"tool {self.name!r}: {error}", where=self.where) from None
        return self._param_headers

    @property
    def may_annotate(self) -> bool:
        """Whether its schema may hold header annotations. The schema is not made for this."""
        return self.function.arguments.may_annotate

    def check_limits(self, limits: Limits) -> None:
        super().check_limits(limits)
        if self.may_annotate:
            _ = self.param_headers
        options = self.options
        if (options.task, options.ttl, options.poll, options.retry, options.begin) != NO_TASK:
            from defserve.protocols.mcp.tool_options import TASK_FACET_NAME, TaskOptions

            task = self.facets[TASK_FACET_NAME] = TaskOptions.from_tool(self, limits)
            self.options = replace(options, timeout=options.timeout or min(task.ttl, limits.tool_max))

    def describe(self, dialect: Dialect) -> Params:
        """The tool as `tools/list` shows it to a peer of this version."""
        options, has = self.options, dialect.has
        narrower = None if self.owner is None else self.owner.schema_dialect
        described: Params = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.function.arguments.publish_schema(narrower),
        }
        vendor: Params = {}
        output = self.returns.publish_schema(narrower)
        if output is not None and "structured" in has and ("any_structured" in has or output.get("type") == "object"):
            described["outputSchema"] = output
        elif output is not None or self.returns.bare_scalar_schema is not None:
            vendor[RETURNS_META_KEY] = self.returns.bare_scalar_schema or self.returns.schema
        if options.annotations and "tool_annotations" in has:
            described["annotations"] = dict(options.annotations)
        if options.tags:
            vendor[TAGS_META_KEY] = list(options.tags)
        if self.may_annotate:
            from defserve.protocols.mcp.tool_options import FILE_PARAMS_META_KEY, find_file_params

            if files := find_file_params(described["inputSchema"]):
                vendor[FILE_PARAMS_META_KEY] = files
        return described | self.metadata(dialect, vendor)

    def result(self, call: Call, value: Any) -> Params:
        """What its function returned, after what was emitted on the way, as `CallToolResult`."""
        emitted, dialect, returns = call.peek(EmittedParts), get_dialect(call), self.returns
        outcome = returns.pack(value) if emitted is None else _join_result(self, value, emitted)
        said, limit = outcome.said, call.session.composition.limits.response
        if said.__class__ is str and len(said) <= limit:  # as most are
            found: Params = {"content": [{"type": "text", "text": said}]}
        else:
            found = {"content": items.encode_content_blocks(said, dialect, limit)}
        structured = outcome.structured
        if structured is NO_STRUCTURED_CONTENT or "structured" not in dialect.has:
            return found
        if returns.wraps:
            found["structuredContent"] = {WRAPPED_RESULT_KEY: structured}
            found["_meta"] = {WRAPPED_META_KEY: True}
        elif is_object(structured) or (returns.schema is not None and "any_structured" in dialect.has):
            found["structuredContent"] = structured
        else:
            return found
        # Every level has a bracket in the text beside it, so of most results the text tells that they are not deep.
        is_text = isinstance(said, str)
        if not is_text or (len(said) > MAX_RESULT_DEPTH and said.count("{") + said.count("[") >= MAX_RESULT_DEPTH):
            _refuse_deep_result(found["structuredContent"])
        if self._write_text is not None:
            # Its last block is the copy; those before it were emitted.
            found["content"][-1:] = self._write_text(value, structured)
        return found


MAX_RESULT_DEPTH: Final = MAX_REPLY_DEPTH - 2
"""The levels of structured content: it is inside of a result, inside of a message."""


def _refuse_deep_result(structured: Any) -> None:
    if is_deeper_than(structured, MAX_RESULT_DEPTH):
        raise LimitExceeded(f"the result is nested deeper than {MAX_RESULT_DEPTH} levels", data={"limit": "depth"})


class Tools(Extension):
    """The tools of a server: `tools/list`, `tools/call` and `tools/validate`."""

    def __init__(self) -> None:
        self.registry: Registry[Tool] = Registry("tool")
        self.late: WaitForLateItems | None = None
        self.tool_list = ListMethod("tools", self.registry)
        self._annotated: Mapping[str, Mapping[tuple[str, ...], str]] = {}
        self._annotated_at = -1

    def methods(self) -> Mapping[str, Handler]:
        return {"tools/list": self.tool_list.build_page, "tools/call": self.call, "tools/validate": self.validate}

    def param_headers(self, name: Any) -> Mapping[tuple[str, ...], str]:
        """Which arguments of a tool clients repeat as HTTP headers; read from its schema once."""
        version = self.registry.version
        if self._annotated_at != version:
            self._annotated = {name: tool.param_headers for name, tool in self.registry.items() if tool.may_annotate}
            self._annotated_at = version
        return self._annotated.get(name, NO_HEADERS) if self._annotated and isinstance(name, str) else NO_HEADERS

    def scopes(self, name: str) -> Sequence[str]:
        """What a caller's token must hold to use a tool."""
        tool = self.registry.get(name)
        return tool.options.scopes if tool is not None else ()

    async def call(self, call: Call, params: Params) -> Params:
        """Audit around: admit, bind, judge, hold, run. A failure of the tool becomes a result that the model reads."""
        try:
            tool = find_item(call, self.registry, read_text_param(params, "name"), UnknownTool)
        except UnknownTool:
            if self.late is None or not await self.late(call, params["name"]):
                raise
            tool = find_item(call, self.registry, params["name"], UnknownTool)
        arguments, seconds = params.get("arguments"), tool.bind_to_call(call)
        if arguments.__class__ is not dict:
            arguments = read_optional_object_param(params, "arguments")
        if not ANSWER_PARAMS.isdisjoint(params):
            await read_input_answers(call)
        try:
            pipeline = call.terms.table.pipeline(tool)
            if not pipeline.empty:
                return await self._run_staged(call, tool, arguments, seconds, pipeline)
            function, began = tool.function, monotonic()
            kwargs = function.arguments.validate(arguments)
            if monotonic() - began > QUICK:
                refuse_slow_check(call, began)
            return tool.result(call, await function.run(call, kwargs, seconds))
        except ProtocolError:
            raise
        except Exception as raised:
            error = unwrap_exception_group(raised)
            try:
                if isinstance(error, ResultMismatch):
                    error = _add_place(error, tool)
                if is_missing_capability_error(error, get_dialect(call).stateless) or isinstance(error, StepUpRequired):
                    raise error from None  # the session answers, and tells the transport
                if (worded := call.terms.table.failure(call, error)) is None:
                    return build_tool_failure(call, error)
                if "result" not in worded:
                    raise error from None  # only the session can answer with an error; it makes the reply again
                return worded["result"]
            finally:
                del error  # its traceback refers to this frame: the arguments would wait for the garbage collector

    async def _run_staged(
        self, call: Call, tool: Tool, arguments: Params | None, seconds: float, pipeline: StagePipeline
    ) -> Params:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as audits:
            await enter_stage_context_managers(audits, (audit(call, tool) for audit in pipeline.audits))
            await pipeline.run_admit_steps(call, tool)
            began = monotonic()
            kwargs = tool.function.arguments.validate(arguments)
            refuse_slow_check(call, began)
            if pipeline.judges:
                await _judge(call, tool, kwargs, pipeline)
            async with AsyncExitStack() as holds:
                await enter_stage_context_managers(holds, (hold(call, tool, kwargs) for hold in pipeline.holds))
                return tool.result(call, await tool.function.run(call, kwargs, seconds))

    async def validate(self, call: Call, params: Params) -> Params:
        """Whether a tool would accept these arguments, without running it. Hides and refuses the same tools as `call`.

        The result is `valid`, and if it is false the `problems` that a call would report: each a `field`, a `reason`.
        """
        name, arguments = read_text_param(params, "name"), read_optional_object_param(params, "arguments")
        call.subject = tool = find_item(call, self.registry, name, UnknownTool)
        # Only callers who may use the tool learn what a guard finds in an argument.
        await call.terms.table.pipeline(tool).run_admit_steps(call, tool)
        began = monotonic()
        try:
            tool.function.arguments.validate(arguments)
        except BadArguments as error:
            return {"valid": False, "problems": [{"field": p.field, "reason": p.reason} for p in error.problems]}
        except Rejected as error:
            return {"valid": False, "problems": [{"field": "", "reason": error.message}]}
        refuse_slow_check(call, began)
        return {"valid": True, "problems": []}


async def _judge(call: Call, tool: Tool, kwargs: dict[str, Any], pipeline: StagePipeline) -> None:
    """Let the stages look at the arguments. The clock stands still while a person is asked."""
    seconds = call.session.composition.limits.validation
    try:
        await call.engine.run_with_timeout(call, seconds, pipeline.run_judge_steps(call, tool, kwargs))
    except TimedOut:
        if not call.timed_out:
            raise
        raise TimedOut.of("validation", "checking the arguments", seconds) from None


def refuse_slow_check(call: Call, began: float) -> None:
    """Raises TimedOut if a check that began then has taken too long. It could not be interrupted."""
    seconds = call.session.composition.limits.validation
    if monotonic() - began > seconds:
        raise TimedOut.of("validation", "checking the arguments", seconds)


def _add_place(error: ResultMismatch, tool: Tool) -> ResultMismatch:
    """The error with the place of the tool's function, because its traceback ends in the framework."""
    signature = tool.function.signature
    if error.forgotten.startswith("ctx.") and signature.flow == "sync":
        fix = f"write ctx.wait({error.forgotten}), or make it async def"
        error = ResultMismatch(f"{error.forgotten} was not awaited, and {signature.name} is a plain def: {fix}")
    error.add_note(f"{signature.name} is at {tool.where}")
    return error


def _join_result(tool: Tool, value: Any, emitted: EmittedParts) -> PackedResult:
    given = tool.returns.join_yielded_values(emitted.parts)
    if tool.function.streams:
        return given
    outcome = tool.returns.pack(value)
    return PackedResult(given.parts + outcome.parts, outcome.structured)


def encode_emitted_part(call: Call, part: Any) -> list[Params]:
    """Something that the tool of a call has just yielded or, as an `EmittedPart`, emitted: its content blocks."""
    parts = (
        pack_untyped_result(part.part).parts if isinstance(part, EmittedPart) else call.subject.returns.pack(part).parts
    )
    return items.encode_content_blocks(parts, get_dialect(call))


def get_content_so_far(call: Call) -> list[Params]:
    """The content that the tool of a call has yielded and emitted so far, as its result would hold it."""
    emitted = call.peek(EmittedParts)
    if emitted is None or not emitted.parts:
        return []
    try:
        # A copy: a worker thread may go on adding.
        return items.encode_content_blocks(
            call.subject.returns.join_yielded_values(list(emitted.parts)).parts, get_dialect(call)
        )
    except ResultMismatch:
        return []


# -- A tool called from within another call: the one road for code mode, meta-tools and whoever else calls by name.
#
# The call passes visibility, wrappers, stages, limits and audit like a `tools/call` of the same peer. It is known by
# the trace id of the outer call, under its own tool's name.


def make_inner_call(outer: Call, name: str, arguments: Params) -> InnerCall:
    """A call of a tool by name, to be `run`. What the client sent along with the outer call counts for it too."""
    # The progress token is the outer call's alone: values of several calls would not grow.
    meta = {key: value for key, value in read_meta(outer.params).items() if key != "progressToken"}
    inner = InnerCall(outer, "tools/call", {"name": name, "arguments": arguments, "_meta": meta})
    inner.local(RequestTrace).id = get_trace_id(outer)
    return inner


async def call_tool(outer: Call, name: str, arguments: Params) -> Params:
    """The `CallToolResult` of a tool, called for the peer of `outer`; `isError` marks one that failed.

    Raises what a `tools/call` would answer with an error: UnknownTool, and refusals where MGP was negotiated.
    In the stateless era a question ends the outer call too, and the answers reach the tool when it is repeated.
    """
    return await make_inner_call(outer, name, arguments).run()
