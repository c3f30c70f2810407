"""MCP tools (server features: tools): declaring, listing and calling them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from defserve.binding.packers import NOTHING, Misfit, Outcome, pack_any
from defserve.binding.results import Returns
from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.core.stages import surround
from defserve.errors import InvalidParams, ProtocolError, UsageError
from defserve.limits import Limits
from defserve.protocols.mcp import content
from defserve.protocols.mcp.failures import VENDOR, lone, tool_failure
from defserve.protocols.mcp.function import Emitted, FindProvider, Function
from defserve.protocols.mcp.identity import Icon, icons_wire
from defserve.protocols.mcp.lifecycle import Dialect, dialect_of
from defserve.protocols.mcp.listing import Listing
from defserve.wire.messages import Params

RETURNS_KEY = VENDOR + "returns"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Everything a tool may say about itself, from decorator to registry.

    `annotations` are MCP's hints (`readOnlyHint`, …). `structured` forces structured content on or off.
    `schema` replaces the schema made from the signature. `timeout` is in seconds.
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    annotations: Mapping[str, Any] | None = None
    icons: Sequence[Icon | str | Mapping[str, Any]] = ()
    meta: Mapping[str, Any] | None = None
    timeout: float | None = None
    inline: bool = False
    structured: bool | None = None
    schema: Mapping[str, Any] | None = None
    tags: Sequence[str] = ()


class Tool:
    """A function with a name, ready to be listed and called. `owner` is the server it was declared on."""

    __slots__ = ("name", "options", "function", "returns", "owner", "extras")

    def __init__(self, name: str, options: ToolOptions, function: Function, returns: Returns, owner: Any) -> None:
        self.name, self.options, self.function, self.returns, self.owner = name, options, function, returns, owner
        self.extras: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        options: ToolOptions | None = None,
        *,
        find_provider: FindProvider | None = None,
        owner: Any = None,
    ) -> Tool:
        """Read a function into a tool. Raises UsageError for anything that could not be called."""
        options = options or ToolOptions()
        bound = Function(function, find_provider or _nothing_injectable, inline=options.inline, schema=options.schema)
        where = bound.signature.where
        name = options.name if options.name is not None else bound.signature.name
        if not NAME.fullmatch(name):
            raise UsageError(
                f"tool name {name!r} is not 1 to 128 characters of A-Z a-z 0-9 _ . -",
                where=where,
                fix='give it another: @server.tool(name="…")',
            )
        if options.inline and bound.signature.flow != "sync":
            raise UsageError(
                f"tool {name!r} is {bound.signature.flow} and inline=True", where=where, fix="drop inline=True"
            )
        timeout: Any = options.timeout
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise UsageError(
                f"tool {name!r}: timeout must be positive seconds, not {timeout!r}",
                where=where,
                fix="give a number, or leave it out for the default",
            )
        return cls(name, options, bound, Returns.of(bound.signature, options.structured), owner)

    def check(self, limits: Limits) -> None:
        """Raises UsageError for a tool that goes beyond what its server allows."""
        if (self.options.timeout or 0) > limits.tool_max:
            raise UsageError(
                f"tool {self.name!r}: timeout={self.options.timeout} is longer than the {limits.tool_max:g} s allowed",
                where=self.where,
                fix="shorten it, or serve with Limits(tool_max=…)",
            )
        written = self.options.description or self.function.signature.function.__doc__ or ""
        # The docstring is only parsed, which costs an import, where it could be too long.
        if len(written) > limits.description and len(self.description) > limits.description:
            raise UsageError(
                f"tool {self.name!r}: its description is longer than {limits.description} characters",
                where=self.where,
                fix="models read it with every request: shorten it, or serve with Limits(description=…)",
            )

    def renamed(self, name: str) -> Tool:
        """The same tool under another name, for mounting."""
        other = Tool(name, replace(self.options, name=name), self.function, self.returns, self.owner)
        other.extras = self.extras
        return other

    @property
    def where(self) -> str:
        return self.function.signature.where

    @property
    def description(self) -> str:
        return self.options.description or self.function.signature.description or ""

    def describe(self, dialect: Dialect) -> Params:
        """The tool as `tools/list` shows it to a peer of this version."""
        options, has = self.options, dialect.has
        fields: Params = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.function.arguments.schema,
        }
        if options.title and "titles" in has:
            fields["title"] = options.title
        meta = {**(options.meta or {})}
        output = self.returns.schema
        if output is not None and "structured" in has and ("any_structured" in has or output.get("type") == "object"):
            fields["outputSchema"] = output
        elif output is not None or self.returns.scalar is not None:
            meta[RETURNS_KEY] = self.returns.scalar or output
        if options.annotations and "tool_annotations" in has:
            fields["annotations"] = dict(options.annotations)
        if options.icons and "icons" in has:
            fields["icons"] = icons_wire(options.icons)
        if options.tags:
            meta[VENDOR + "tags"] = list(options.tags)
        if meta and "meta" in has:
            fields["_meta"] = meta
        return fields


@dataclass(slots=True)
class Tools:
    """The tools of a server: `tools/list` and `tools/call`."""

    registry: Registry[Tool] = field(default_factory=lambda: Registry("tool"))
    listing: Listing[Tool] = field(init=False)

    def __post_init__(self) -> None:
        self.listing = Listing("tools", self.registry, lambda tool, dialect: tool.describe(dialect))

    def list(self, call: Call, params: Params) -> Any:
        return self.listing.page(call, params)

    async def call(self, call: Call, params: Params) -> Params:
        """Admit, bind, judge, hold, run. Whatever the tool does wrong becomes a result the model reads."""
        tool = self._find(call, params)
        call.subject = tool
        if "requestState" in params or "inputResponses" in params:
            from defserve.protocols.mcp.rounds import begin

            begin(call, params)
        try:
            pipeline = call.session.composition.pipeline
            if pipeline.empty:
                return await self._run(call, tool, tool.function.arguments.validate(params.get("arguments")))
            return await self._run_staged(call, tool, params)
        except ProtocolError:
            raise
        except Exception as raised:
            error = lone(raised)
            if isinstance(error, Misfit):
                # Its traceback ends in the framework: the function has returned.
                error.add_note(f"{tool.function.signature.name} is at {tool.where}")
            if getattr(error, "needs", None) and dialect_of(call).stateless:
                raise error from None
            return tool_failure(call, error)

    def _find(self, call: Call, params: Params) -> Tool:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise InvalidParams("Invalid params: name must be a string")
        if arguments is not None and not isinstance(arguments, dict):
            raise InvalidParams("Invalid params: arguments must be an object")
        tool = self.registry.get(name)
        if tool is None or not call.session.composition.visible(call, tool):
            raise InvalidParams(f"Unknown tool: {name}")
        return tool

    async def _run(self, call: Call, tool: Tool, kwargs: dict[str, Any]) -> Params:
        seconds = tool.options.timeout or call.session.composition.limits.tool
        value = await tool.function.run(call, kwargs, seconds)
        emitted = call.peek(Emitted)
        if emitted is None:
            return result(tool.returns.pack(value), dialect_of(call))
        if tool.function.streams:
            return result(tool.returns.join(emitted.parts), dialect_of(call))
        outcome = tool.returns.pack(value)
        earlier = [part for aside in emitted.parts for part in pack_any(aside.part).parts]
        return result(Outcome(earlier + outcome.parts, outcome.structured), dialect_of(call))

    async def _run_staged(self, call: Call, tool: Tool, params: Params) -> Params:
        from contextlib import AsyncExitStack

        pipeline = call.session.composition.pipeline
        async with AsyncExitStack() as audits:
            await surround(audits, (audit(call, tool) for audit in pipeline.audits))
            await pipeline.admit(call, tool)
            kwargs = tool.function.arguments.validate(params.get("arguments"))
            await pipeline.judge(call, tool, kwargs)
            async with AsyncExitStack() as holds:
                await surround(holds, (hold(call, tool, kwargs) for hold in pipeline.holds))
                return await self._run(call, tool, kwargs)


def result(outcome: Outcome, dialect: Dialect) -> Params:
    """A tool's outcome as `CallToolResult`."""
    found: Params = {"content": content.blocks(outcome.parts, dialect)}
    structured = outcome.structured
    if structured is not NOTHING and "structured" in dialect.has:
        if isinstance(structured, dict) or "any_structured" in dialect.has:
            found["structuredContent"] = structured
    return found


def _nothing_injectable(annotation: Any) -> None:
    return None
