"""MGP §15: which servers there are behind a kernel, and how one is added and removed while it runs.

`mgp/discovery/list`, `register` and `deregister`, and the same as tools for clients that know only MCP. This reads and
bounds what peers send. Who may do what, and how, is up to the `KernelDirectory` behind it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.binding.explicit_schema import ExplicitArgumentsSchema
from defserve.binding.results import PackedResult, ResultPacker
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.messages import Params
from defserve.core.shapes import (
    TEXT,
    MemberKind,
    bounded_list_of,
    distinct_list_of,
    make_checked_kind,
    one_of,
    read_member,
    restrict_kind,
)
from defserve.errors import InvalidParams
from defserve.protocols.mcp.errors import ITEM_SOURCE_META_KEY, read_optional_object_param
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mgp.terms import MGP_SECTIONS_BY_NAME, MGP_VERSION
from defserve.protocols.mgp.vocabulary import is_permission_name

if TYPE_CHECKING:
    from defserve.kernel.governance.server_directory import KernelDirectory


@dataclass(frozen=True, slots=True)
class KnownServer:
    """One server, as a caller may know it. `speaks_mgp` False: it is plain MCP."""

    id: str
    status: str
    trust_level: str
    tools: Sequence[str] = ()
    extensions: Sequence[str] = ()
    permissions: Sequence[str] = ()
    speaks_mgp: bool = False
    created_by: str | None = None

    def is_match(self, wanted: ServerFilter) -> bool:
        return (
            wanted.status in (None, self.status)
            and wanted.extensions.issubset(self.extensions)
            and wanted.permissions.issubset(self.permissions)
        )

    def to_wire(self) -> Params:
        told: Params = {
            "id": self.id,
            "status": self.status,
            "mgp_version": MGP_VERSION if self.speaks_mgp else None,
            "extensions": list(self.extensions),
            "permissions_required": list(self.permissions),
            "tools": list(self.tools),
            "trust_level": self.trust_level,
        }
        return told if self.created_by is None else {**told, "created_by": self.created_by}


class DiscoverySection(Extension):
    """The methods over a directory."""

    def __init__(self, directory: KernelDirectory) -> None:
        self.directory = directory

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/discovery/list": self.list,
            "mgp/discovery/register": self.register,
            "mgp/discovery/deregister": self.deregister,
        }

    async def list(self, call: Call, params: Params) -> Params:
        wanted = ServerFilter.from_params(params)
        return {"servers": [one.to_wire() for one in self.directory.servers(call) if one.is_match(wanted)]}

    async def register(self, call: Call, params: Params) -> Params:
        self.directory.require_operator_call(call)
        wanted = ServerRegistration.from_params(params)
        status, message = await self.directory.register(call, wanted)
        return {"id": wanted.id, "status": status, "message": message}

    async def deregister(self, call: Call, params: Params) -> Params:
        self.directory.require_operator_call(call)
        id, reason = read_member(params, "id", ID), read_member(params, "reason", PROSE, "", nullable=False)
        await self.directory.deregister(call, id, reason)
        return {"id": id, "status": "deregistered", "message": f"{id} has ended and is forgotten"}


# -- The methods as tools, for operators whose clients know only MCP.


T = TypeVar("T", bound=Tool)
AsyncMethodHandler: TypeAlias = Callable[[Call, Params], Awaitable[Params]]
Told: TypeAlias = Callable[[Params], str]

SERVERS, REGISTER, DEREGISTER = "mgp_servers", "mgp_server_register", "mgp_server_deregister"
_TEXT: Final[Params] = {"type": "string"}
_TEXTS: Final[Params] = {"type": "array", "items": _TEXT}


def make_tool_input_schema(properties: Params, *required: str) -> Params:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(required)}


class MethodToolSpec(NamedTuple):
    """What a tool does, its input, and whether it changes something."""

    description: str
    schema: Params
    changes: bool


# -- The params of the three methods, checked as they are read. All is bounded, and nothing unknown is passed over.

SERVER_STATUS_FILTERS: Final = (
    "registered",
    "connecting",
    "connected",
    "draining",
    "restarting",
    "disconnected",
    "error",
    "all",
)
TRANSPORTS: Final = {"stdio": "command", "http": "url", "streamable-http": "url"}
TRUST_LEVELS: Final = ("trusted", "standard", "sandboxed", "core", "experimental", "untrusted")

DISCOVERY_TOOL_SPECS: Final[dict[str, MethodToolSpec]] = {
    SERVERS: MethodToolSpec(
        "List the servers behind this one, their states and their tools.",
        make_tool_input_schema(
            {
                "filter": make_tool_input_schema(
                    {"extensions": _TEXTS, "permissions": _TEXTS, "status": {"enum": list(SERVER_STATUS_FILTERS)}}
                )
            }
        ),
        False,
    ),
    REGISTER: MethodToolSpec(
        "Add a server while this one runs: a command on the operator's list, or an address.",
        make_tool_input_schema(
            {
                "id": _TEXT,
                "command": _TEXT,
                "args": _TEXTS,
                "url": _TEXT,
                "transport": {"enum": list(TRANSPORTS)},
                "mgp": make_tool_input_schema(
                    {"extensions": _TEXTS, "permissions_required": _TEXTS, "trust_level": {"enum": list(TRUST_LEVELS)}}
                ),
                "justification": _TEXT,
                "keep": {"type": "boolean", "description": "Keep it when this conversation ends"},
            },
            "id",
        ),
        True,
    ),
    DEREGISTER: MethodToolSpec(
        "End a server that was added while this one runs.",
        make_tool_input_schema({"id": _TEXT, "reason": _TEXT}, "id"),
        True,
    ),
}


class MethodTool(Tool):
    """A method that is offered as a tool."""

    __slots__ = ()

    def bind_to_call(self, call: Call) -> float:
        arguments = self.function.arguments
        if isinstance(arguments, ExplicitArgumentsSchema):
            # At the first call that may take seconds, and is no fault of what came.
            arguments.prepare()
        return super().bind_to_call(call)


class OperatorTool(MethodTool):
    """A tool that checks itself whether its caller is an operator."""

    __slots__ = ()


def make_discovery_tools(section: DiscoverySection, owner: Any) -> list[OperatorTool]:
    answers: dict[str, AsyncMethodHandler] = {
        SERVERS: section.list,
        REGISTER: section.register,
        DEREGISTER: section.deregister,
    }
    return [
        make_operator_tool(name, DISCOVERY_TOOL_SPECS[name], answers[name], owner, _format_servers)
        for name in DISCOVERY_TOOL_SPECS
    ]


def make_operator_tool(
    name: str, spec: MethodToolSpec, answer: AsyncMethodHandler, owner: Any, told: Told
) -> OperatorTool:
    """A method for operators as a tool: `told` makes text of its answer."""
    return make_method_tool(OperatorTool, name, spec, answer, owner, lambda value: PackedResult(told(value), value))


def make_method_tool(
    kind: type[T], name: str, spec: MethodToolSpec, answer: Handler, owner: Any, pack: Callable[[Any], PackedResult]
) -> T:
    """A method as a tool: `answer` gets what the client sent, `pack` makes a result of its answer."""

    async def run(call: Call, **given: Any) -> Any:
        answered = answer(call, given)
        return await answered if inspect.isawaitable(answered) else answered

    options = ToolOptions(
        name=name,
        description=spec.description,
        schema=spec.schema,
        annotations={"destructiveHint": True} if spec.changes else {"readOnlyHint": True},
        meta={ITEM_SOURCE_META_KEY: "kernel"},
    )
    arguments = ExplicitArgumentsSchema.from_trusted_schema(spec.schema)
    function = Function(run, lambda annotation: (lambda call: call) if annotation is Call else None, schema=arguments)
    return kind(name, options, function, ResultPacker(pack), owner)


def _format_servers(value: Params) -> str:
    lines = [f"{one['id']} {one['status']} {' '.join(one['tools'])}" for one in value.get("servers", ())]
    text = f"{value['id']}: {value['status']}. {value['message']}" if "id" in value else "\n".join(lines)
    return text or "There are no servers."


MAX_ITEMS: Final = 64
MAX_TEXT, MAX_WORD = 2_000, 4_096
REGISTER_MEMBERS: Final = frozenset(
    {"id", "command", "args", "url", "transport", "mgp", "created_by", "justification", "keep", "trace_id", "_meta"}
)
MGP_MEMBERS: Final = frozenset({"extensions", "permissions_required", "trust_level"})


def _is_printable(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and not any(True for _ in iter_hidden_character_notes(value))


ID = restrict_kind(
    TEXT,
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}").fullmatch,
    "must have 1 to 128 letters, digits, dots, dashes and underscores",
)
PROSE: MemberKind[str] = make_checked_kind(
    f"a line of at most {MAX_TEXT} printable characters", lambda value: _is_printable(value, MAX_TEXT)
)
ARGUMENT_KIND: MemberKind[str] = make_checked_kind(
    f"text of at most {MAX_WORD} printable characters", lambda value: _is_printable(value, MAX_WORD)
)
WORD = restrict_kind(ARGUMENT_KIND, bool, "must not be empty")
WORDS = distinct_list_of(bounded_list_of(WORD, MAX_ITEMS))
# The reference kernel writes states with a capital letter in places.
STATUS = MemberKind(
    one_of(*SERVER_STATUS_FILTERS).description, lambda value: one_of(*SERVER_STATUS_FILTERS).read(str(value).lower())
)


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """What `mgp/discovery/list` asks for. A server must have all extensions and all permissions. None: any status."""

    extensions: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    status: str | None = None

    @classmethod
    def from_params(cls, params: Params) -> ServerFilter:
        """Raises InvalidParams."""
        given = read_optional_object_param(params, "filter") or {}
        _only(given, ("extensions", "permissions", "status"), "filter.")
        status = read_member(given, "status", STATUS, None, label="filter.status")
        wanted = (frozenset(_read_words(given, name, "filter.")) for name in ("extensions", "permissions"))
        return cls(*wanted, status=None if status == "all" else status)


@dataclass(frozen=True, slots=True)
class ServerRegistration:
    """What `mgp/discovery/register` asks for: a `command` with `args`, or a `url`. `created_by` is only a claim."""

    id: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    extensions: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    trust_level: str = "sandboxed"
    created_by: str = ""
    justification: str = ""
    keep: bool = False

    @classmethod
    def from_params(cls, params: Params) -> ServerRegistration:
        """Raises InvalidParams."""
        _only(params, REGISTER_MEMBERS)
        mgp = read_optional_object_param(params, "mgp") or {}
        _only(mgp, MGP_MEMBERS, "mgp.")
        if ("command" in params) == ("url" in params):
            raise InvalidParams("Invalid params: give a command or a url, and not both")
        kind = "command" if "command" in params else "url"
        if TRANSPORTS.get(str(params.get("transport", "stdio" if kind == "command" else "http"))) != kind:
            raise InvalidParams(f"Invalid params: transport does not fit a {kind}")
        if kind == "url" and params.get("args"):
            raise InvalidParams("Invalid params: args belong to a command")
        level, keep = mgp.get("trust_level", "sandboxed"), params.get("keep", False)
        if level not in TRUST_LEVELS or not isinstance(keep, bool):
            raise InvalidParams(
                f"Invalid params: mgp.trust_level is one of {', '.join(TRUST_LEVELS)}, keep is true or false"
            )
        extensions, permissions = (_read_words(mgp, name, "mgp.") for name in ("extensions", "permissions_required"))
        if unknown := [name for name in extensions if name not in MGP_SECTIONS_BY_NAME]:
            raise InvalidParams(f"Invalid params: {unknown[0][:60]!r} is no extension of MGP")
        if unknown := [name for name in permissions if not is_permission_name(name)]:
            raise InvalidParams(f"Invalid params: {unknown[0][:60]!r} is no permission")
        return cls(
            read_member(params, "id", ID),
            read_member(params, "command", WORD, "", nullable=False),
            read_member(params, "args", bounded_list_of(ARGUMENT_KIND, MAX_ITEMS), (), nullable=False),
            read_member(params, "url", WORD, "", nullable=False),
            extensions,
            permissions,
            level,
            read_member(params, "created_by", PROSE, "", nullable=False),
            read_member(params, "justification", PROSE, "", nullable=False),
            keep,
        )


def _read_words(params: Params, name: str, at: str) -> tuple[str, ...]:
    return read_member(params, name, WORDS, (), nullable=False, label=at + name)


def _only(params: Params, known: Collection[str], at: str = "") -> None:
    if unknown := sorted(set(params) - set(known)):
        raise InvalidParams(f"Invalid params: {at}{unknown[0][:60]} is not known; known are {', '.join(sorted(known))}")
