"""Code mode as an extension: its two tools, what they share, and their end with the server."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from keyword import iskeyword
from typing import Any
from weakref import WeakKeyDictionary

from defserve.code_mode.calls import is_tool_visible
from defserve.code_mode.run import CodeMode, CodeRun, CodeRunSharedState
from defserve.core.call import Call
from defserve.core.extension import Extension
from defserve.core.json_values import is_array, is_mapping, is_object, read_required_names
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import ToolError, UsageError
from defserve.protocols.mcp.app_policy import is_view_only
from defserve.protocols.mcp.asking.client_requests import ParkedWork
from defserve.protocols.mcp.lifecycle import Dialect, get_dialect
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.sandbox import monty
from defserve.sandbox.job import Outcome
from defserve.sandbox.values import measure_min_text_bytes
from defserve.search.entries import MAX_INDEXED_TEXT_LENGTH
from defserve.search.ranking import MAX_QUERY_LENGTH, MAX_QUERY_WORDS

RUN, DESCRIBE = "run_code", "describe_tools"

# How many tools are described at once, and how many of them in full.
MAX_DESCRIBED_TOOLS, MAX_FULL_SIGNATURES, MAX_NAME_LENGTH = 200, 20, 128

# After its own limit, a run has so many seconds to end.
GRACE_SECONDS = 5.0

Discover = Callable[[Call, Params], Awaitable[Params]]
"""`mgp/tools/discover`: `query` and `max_results` in, `tools` out, the best first."""

ABOUT = (
    "Run Python code that calls the other tools of this server, and get what it returns. Use it when a task takes "
    "several calls, or when results have to be filtered or joined. Each tool is a function: `add(a=1, b=2)` gives its "
    "result (structured data as dicts and lists). Several at once: `await asyncio.gather(call_tool('add', {'a': 1, "
    "'b': 2}), …)`. A call that fails raises an exception. The value of the last line, or of `result`, and what is "
    "printed come back. There are no files, no network and no third-party modules; classes and generators are limited. "
    f"`{DESCRIBE}` gives the signatures of the tools."
)
ABOUT_DESCRIBE = (
    f"The tools that code in `{RUN}` can call, as Python signatures: those that are named, or those that fit a query, "
    "or all."
)


class CodeModeExtension(Extension):
    """Offers `run_code` and `describe_tools`. `discover` ranks tools for a query; without it words are looked for."""

    name = "code_mode"
    names = frozenset({RUN, DESCRIBE})

    def __init__(self, options: CodeMode, tools: Registry[Tool]) -> None:
        if not monty.is_installed():
            raise UsageError(
                f"code mode needs pydantic-monty {monty.MONTY_VERSION}, which is not installed",
                fix="pip install 'defserve[sandbox]'",
            )
        self.options, self._tools = options, tools
        self.discover: Discover | None = None
        self.hides = not options.list_tools
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, CodeRunSharedState] = WeakKeyDictionary()

    def tools(self) -> tuple[Tool, Tool]:
        """Both tools, to be added to the server."""
        seconds = self.options.seconds + GRACE_SECONDS
        run = ToolOptions(
            name=RUN, title="Run code", description=ABOUT, timeout=seconds, scopes=tuple(self.options.scopes)
        )
        describe = ToolOptions(
            name=DESCRIBE, title="Describe tools", description=ABOUT_DESCRIBE, annotations={"readOnlyHint": True}
        )
        return (
            Tool.of(self.run_code, run, find_provider=_provide_call),
            Tool.of(self.describe_tools, describe, find_provider=_provide_call),
        )

    # -- the tools ---------------------------------------------------------------------------------------

    async def run_code(self, call: Call, code: str) -> dict[str, Any]:
        """The tool `run_code`.

        Args:
            code: Python. The value of its last line is the result.
        """
        if call.outer is not None:
            raise ToolError("code cannot run code: call the tools themselves")
        if len(code.encode("utf-8", "replace")) > self.options.source_bytes:
            raise ToolError(f"the code is longer than {self.options.source_bytes} bytes")
        place = self.get_shared_state()

        async def begin(work: ParkedWork) -> tuple[Outcome, str]:
            run = CodeRun(place, work, code)
            return await run.run(), run.describe_calls()

        outcome, note = await place.parking.run_or_resume(call, begin)
        if outcome.status != "ok":
            told = f"\nIt had printed:\n{outcome.stdout}" if outcome.stdout else ""
            raise ToolError(f"{outcome.error}\n{note}{told}", data={"status": outcome.status})
        printed = {"printed": outcome.stdout} if outcome.stdout else {}
        return {"result": outcome.value, **printed}

    async def describe_tools(self, call: Call, names: list[str] | None = None, query: str | None = None) -> str:
        """The tool `describe_tools`.

        Args:
            names: Names of tools to describe.
            query: What the tools should do, in a few words.
        """
        dialect, asker = get_dialect(call), _read_as_description(call)
        seen = {tool.name: tool for tool in self._tools if tool.name not in self.names and is_tool_visible(asker, tool)}
        if names:
            known = (
                signature(seen[n], dialect) if n in seen else f"# there is no tool {n[:MAX_NAME_LENGTH]}" for n in names
            )
            return "\n".join(islice(known, MAX_DESCRIBED_TOOLS))
        if query:
            if len(query) > MAX_QUERY_LENGTH:
                raise ToolError(f"the query has more than {MAX_QUERY_LENGTH} characters; say it in a few words")
            found = await self._search_tools(call, query) if self.discover is not None else _match_query(seen, query)
            seen = {name: seen[name] for name in found if name in seen}
        shown = list(seen.values())[:MAX_DESCRIBED_TOOLS]
        lines = [signature(tool, dialect, brief=len(seen) > MAX_FULL_SIGNATURES) for tool in shown]
        if len(seen) > len(shown):
            lines.append(f"# and {len(seen) - len(shown)} more: give a query")
        return "\n".join(lines) or "# no tool fits"

    async def _search_tools(self, call: Call, query: str) -> list[str]:
        assert self.discover is not None
        answer = await self.discover(call, {"query": query, "max_results": MAX_FULL_SIGNATURES})
        return [tool["name"] for tool in answer["tools"]]

    # -- the plug ----------------------------------------------------------------------------------------

    def visible(self, call: Call, item: Any) -> bool:
        # Called for lists and for calls: what is not listed can still be called.
        # A host looks for the tools of its views in the list, and hides them from the model itself.
        return call.method != "tools/list" or item.kind != "tool" or item.name in self.names or is_view_only(item)

    def view(self, call: Call) -> object:
        return None

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Start a worker in the background, so that the first run finds it warm. End all of them with the server."""
        from anyio import CancelScope
        from anyio.to_thread import run_sync

        place = self.get_shared_state()
        warming = asyncio.ensure_future(asyncio.to_thread(place.workers.open))
        warming.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await place.parking.close()
                # Once for a worker that still starts, and once for one that was about to.
                await run_sync(place.workers.close)
                await asyncio.wait([warming])
                await run_sync(place.workers.close)

    def get_shared_state(self) -> CodeRunSharedState:
        """What the runs on this event loop share."""
        loop = asyncio.get_running_loop()
        if loop not in self._places:
            self._places[loop] = CodeRunSharedState(self.options, self._tools)
        return self._places[loop]


def _provide_call(annotation: Any) -> Callable[[Call], Call] | None:
    return (lambda call: call) if annotation is Call else None


def _read_as_description(call: Call) -> Call:
    """The call as a list decides who sees what: a call of a tool finds even those that it may not use."""
    asker = Call(call.session, call.id, "tools/describe", call.params, call.raw, call.terms)
    asker.identity = call.identity
    return asker


def _match_query(tools: dict[str, Tool], query: str) -> list[str]:
    """The tools with the most words of a query in their name or description."""
    words = list(dict.fromkeys(query.lower().split()))[:MAX_QUERY_WORDS]
    texts = ((name, f"{name} {tool.description}"[:MAX_INDEXED_TEXT_LENGTH].lower()) for name, tool in tools.items())
    hits = {name: sum(word in text for word in words) for name, text in texts}
    return sorted((name for name, count in hits.items() if count), key=lambda name: -hits[name])


# -- Tools as Python signatures: what a model needs to call them, in few words.


TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}

# Of the types of one schema: how many parts are spelled out, and how long one may be.
MAX_TYPE_PARTS, MAX_TYPE_LENGTH = 100, 300
MAX_SIGNATURE_LENGTH = 4_000
MAX_FIRST_LINE = 120
KINDS = (*TYPES, "array", "object")

# Of the parameters of one tool. The schema may be another server's, of any width.
MAX_PARAMETERS, MAX_PARAMETER_NAME = 100, 64


def signature(tool: Tool, dialect: Dialect, *, brief: bool = False) -> str:
    """`def add(a: int, b: int = 1) -> int` and its description. `brief` keeps the first line of that."""
    parameters, result = ", ".join(_iter_parameters(tool.function.arguments.schema)), _format_result(tool, dialect)
    if is_callable_by_name(tool.name):
        head = f"def {tool.name}({parameters}) -> {result}"
    else:
        head = f"await call_tool({tool.name!r}, {{{parameters}}}) -> {result}"
    described = " ".join(tool.description.split())
    if brief and len(described) > MAX_FIRST_LINE:
        described = described[: MAX_FIRST_LINE - 1] + "…"
    return (f"{head}: {described}" if described else head)[:MAX_SIGNATURE_LENGTH]


def _format_result(tool: Tool, dialect: Dialect) -> str:
    # A tool of another server has only its listing.
    returned = tool.returns.schema or tool.returns.bare_scalar_schema or tool.describe(dialect).get("outputSchema")
    if returned is not None:
        return _Types(returned).text(returned)
    if type(tool) is not Tool:
        return "Any"
    return "None" if tool.function.signature.returns in (None, type(None)) else "str"


def is_callable_by_name(name: str) -> bool:
    """Whether the name is free for a function: an identifier that Python does not use itself."""
    return name.isidentifier() and not iskeyword(name) and not hasattr(builtins, name)


def _iter_parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    properties: Any = schema.get("properties")
    required, types = read_required_names(schema), _Types(schema)
    if not is_object(properties):
        return
    for name, member in islice(properties.items(), MAX_PARAMETERS):
        text = f"{_format_name(name)}: {types.text(member)}"
        if name in required:
            yield text
        else:
            yield f"{text} = {_format_literal(member.get('default'))}" if is_mapping(member) else f"{text} = None"
    if len(properties) > MAX_PARAMETERS:
        yield f"… {len(properties) - MAX_PARAMETERS} more"


def _format_name(name: str) -> str:
    """A parameter as it is called. What is no identifier is quoted: a line break in it would begin another tool."""
    is_plain = len(name) <= MAX_PARAMETER_NAME and name.isidentifier()
    return name if is_plain else _format_literal(name[:MAX_PARAMETER_NAME])


def _format_literal(value: Any) -> str:
    return repr(value) if measure_min_text_bytes(value, MAX_TYPE_LENGTH) <= MAX_TYPE_LENGTH else "…"


class _Types:
    """Types of one schema. Those of other servers may refer to themselves, so only so many parts are spelled out."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MAX_TYPE_PARTS

    def text(self, schema: Any) -> str:
        self._left -= 1
        text = self._format_type(schema) if self._left > 0 and is_mapping(schema) else "Any"
        return text if len(text) <= MAX_TYPE_LENGTH else "Any"

    def _format_type(self, schema: Mapping[str, Any]) -> str:
        if isinstance(ref := schema.get("$ref"), str):
            return self.text(self._resolve_reference(ref)) if len(ref) <= MAX_TYPE_LENGTH else "Any"
        if "const" in schema:
            return f"Literal[{_format_literal(schema['const'])}]"
        if is_array(values := schema.get("enum")):
            return f"Literal[{', '.join(map(_format_literal, values))}]" if len(values) <= MAX_TYPE_PARTS else "Any"
        for keyword in ("anyOf", "oneOf"):
            if is_array(members := schema.get(keyword)):
                return self._format_union(members)
        kind: Any = schema.get("type")
        if is_array(kind):
            return self._format_union([{**schema, "type": one} for one in kind]) if len(kind) <= len(KINDS) else "Any"
        if kind == "array":
            return f"list[{self.text(schema['items'])}]" if "items" in schema else "list"
        if kind == "object":
            return self._format_object(schema)
        return TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _format_union(self, members: Sequence[Any]) -> str:
        # More than are spelled out is too long, or the same.
        return " | ".join(dict.fromkeys(map(self.text, members[:MAX_TYPE_PARTS]))) or "Any"

    def _format_object(self, schema: Mapping[str, Any]) -> str:
        properties: Any = schema.get("properties")
        if is_object(properties) and len(properties) > MAX_TYPE_PARTS:
            return "dict"
        if is_object(properties) and properties:
            required = read_required_names(schema)
            members = (
                f"{_format_literal(n)}{'' if n in required else '?'}: {self.text(one)}" for n, one in properties.items()
            )
            return f"{{{', '.join(members)}}}"
        values = schema.get("additionalProperties")
        return f"dict[str, {self.text(values)}]" if is_mapping(values) else "dict"

    def _resolve_reference(self, ref: str) -> Any:
        found: Any = self._root
        for part in ref.removeprefix("#/").split("/"):
            found = found.get(part) if is_mapping(found) else None
        return found
