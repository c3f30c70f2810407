"""Tools, resources and prompts of a backend, as items of this server. Their listings are kept as they came.

Only the prefix in URIs is put in, and taken out again. Without a prefix nothing is touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from defserve.binding.arguments import ArgumentsSchema, refuse_infinity
from defserve.binding.json_schemas import ensure_properties
from defserve.binding.results import ResultPacker, pack_untyped_result
from defserve.binding.signature import ParsedDocstring, Signature
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import Json, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.errors import InvalidParams, UsageError
from defserve.limits import Limits
from defserve.protocols.mcp.app_policy import (
    APP_FACET_NAME,
    APP_MIME_TYPE,
    UI_URI_SCHEME,
    VIEW_ONLY_FACET,
    can_show_apps,
)
from defserve.protocols.mcp.apps import prefix_names_in_view_html
from defserve.protocols.mcp.errors import (
    DEFSERVE_NAMESPACE,
    RESOURCE_NOT_FOUND_CODE,
    SERVER_ID_META_KEY,
    ResourceNotFound,
    find_no_back_channel_error,
)
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.items import ANSWER_PARAMS, Item, read_input_answers
from defserve.protocols.mcp.lifecycle import Dialect, build_cache_hints, get_dialect
from defserve.protocols.mcp.prompts import Prompt, PromptOptions
from defserve.protocols.mcp.resources import Resource, ResourceContentsCache, ResourceOptions
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mcp.transforms import MountPrefix, TransformedArguments
from defserve.protocols.mgp.security import Security, ToolSecurity
from defserve.protocols.mgp.terms import MGP_NAME, SECURITY_META_KEY
from defserve.protocols.mgp.vocabulary import is_permission_name
from defserve.proxying.boundary import (
    RelayedError,
    adapt_backend_result,
    keep_warning_hints,
    make_malformed_result_error,
)
from defserve.proxying.relay import is_task_only

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcp.uri_template import UriTemplate
    from defserve.proxying.backend import Backend


# Where the listing of a tool names the resource that shows it: `_meta.ui.resourceUri`, or the older flat member.
UI, RESOURCE_URI, FLAT_UI = "ui", "resourceUri", "ui/resourceUri"


def prefix_tool_result(result: Json, prefix: MountPrefix) -> Json:
    """`CallToolResult`: links and embedded resources in its content."""
    content = result.get("content")
    if prefix.text and is_array(content):
        for block in content:
            # Most blocks are texts, and this is done for every call.
            if is_object(block) and block.get("type") != "text":
                _prefix_block(block, prefix)
    return result


def prefix_prompt_result(result: Json, prefix: MountPrefix) -> Json:
    """`GetPromptResult`: links and embedded resources in its messages."""
    if prefix.text:
        for message in _objects(result.get("messages")):
            content = message.get("content")
            for block in _objects(content if isinstance(content, list) else [content]):
                _prefix_block(block, prefix)
    return result


def prefix_contents(result: Json, prefix: MountPrefix) -> Json:
    """`ReadResourceResult`. A view with our bridge finds its tools under the prefix."""
    if prefix.text:
        for content in _objects(result.get("contents")):
            _prefix_members(content, "uri", prefix)
            if content.get("mimeType") == APP_MIME_TYPE and isinstance(content.get("text"), str):
                content["text"] = prefix_names_in_view_html(content["text"], prefix)
    return result


def prefix_listed_tool(tool: Json, prefix: MountPrefix) -> Json:
    """A tool of a list: the resource that shows it. The given objects are not changed."""
    meta = tool.get("_meta")
    if not prefix.text or not isinstance(meta, dict):
        return tool
    renamed: Json = {**meta}
    _prefix_members(renamed, FLAT_UI, prefix)
    shown: Any = renamed.get(UI)
    if isinstance(shown, dict):
        renamed[UI] = {**shown}
        _prefix_members(renamed[UI], RESOURCE_URI, prefix)
    return {**tool, "_meta": renamed}


def prefix_skill(entry: Json, prefix: MountPrefix) -> Json:
    """A skill of a list: its own URI and those of its files. The given objects are not changed."""
    if not prefix.text:
        return entry
    renamed = {**entry}
    _prefix_members(renamed, "uri", prefix)
    if is_array(files := entry.get("resources")):
        renamed["resources"] = [{**file} if is_object(file) else file for file in files]
        prefix_directory(renamed, prefix)
    return renamed


def prefix_directory(result: Json, prefix: MountPrefix) -> Json:
    """`ReadDirectoryResult`: what a folder of a skill holds."""
    if prefix.text:
        for child in _objects(result.get("resources")):
            _prefix_members(child, "uri", prefix)
    return result


def _prefix_block(block: Json, prefix: MountPrefix) -> None:
    kind = block.get("type")
    if kind == "resource_link":
        _prefix_members(block, "uri", prefix)
    elif kind == "resource" and isinstance(block.get("resource"), dict):
        _prefix_members(block["resource"], "uri", prefix)


def _prefix_members(value: Json, member: str, prefix: MountPrefix) -> None:
    if isinstance(value.get(member), str):
        value[member] = prefix.prefix_uri(value[member])


def _objects(value: Any) -> list[Json]:
    return [item for item in value if is_object(item)] if is_array(value) else []


# -- Tools, resources and prompts of a backend, as items of this server. Their listings are kept as they came.


IN_META: Final = DEFSERVE_NAMESPACE + "security"
ANNOTATION: Final = "x-mcp-header"

# Members of a listed item, and the feature that a version must have to be shown them.
NEEDS: Final[Mapping[str, str]] = {"title": "titles", "icons": "icons", "_meta": "meta"}


class UncheckedArguments(ArgumentsSchema):
    """The arguments of a tool elsewhere. That server checks them; an infinity would come there as null."""

    __slots__ = ("_raw",)

    def __init__(self, schema: Any) -> None:
        super().__init__((), ())
        self._raw: Json = schema

    @property
    def schema(self) -> Json:
        return self._raw

    @property
    def may_annotate(self) -> bool:
        return _mentions(self._raw, ANNOTATION)

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        refuse_infinity(given)
        return {} if given is None else given


class RelayedFunction(Function):
    """Stands where an author's function would: running it sends a request to the backend."""

    __slots__ = ("send",)

    def __init__(
        self, name: str, arguments: UncheckedArguments, send: Callable[[Call, Json], Coroutine[Any, Any, Any]]
    ) -> None:
        self.signature = Signature(_elsewhere, name, (), (), None, "async", ParsedDocstring(None))
        self.arguments, self.injection, self.inline, self.send = arguments, None, False, send

    @property
    def streams(self) -> bool:
        return False

    def run(self, call: Call, kwargs: dict[str, Any], seconds: float) -> Awaitable[Any]:
        return call.session.engine.run_with_timeout(call, seconds, self.send(call, kwargs))


class BackendItemMixin(Item[Any]):
    """What tools, prompts and resources of a backend have in common."""

    __slots__ = ()

    backend: Backend

    @property
    def where(self) -> str:
        return f"server {self.backend.id!r}"

    @property
    def description(self) -> str:
        return self.options.description or ""

    def check_limits(self, limits: Limits) -> None:
        """The backend has checked it."""


class RemoteTool(BackendItemMixin, Tool):
    """A tool of a backend. `inner` is its name there, `raw` its listing.

    If only the conversations of some fronts have it, `fronts` are their keys, and nobody else sees it. None: everybody.
    """

    __slots__ = ("backend", "fronts", "inner", "must_be_task", "raw")

    fronts: set[Hashable] | None

    def __init__(self, backend: Backend, name: str, raw: Json) -> None:
        self.backend, self.inner, self.raw, self.fronts = backend, str(raw["name"]), raw, None
        self.must_be_task = is_task_only(raw)
        options = ToolOptions(
            name=name,
            title=string_or_none(raw.get("title")),
            description=string_or_none(raw.get("description")) or "",
            annotations=keep_warning_hints(object_or_empty(raw.get("annotations"))) or None,
            timeout=backend.timeout,
        )
        function = RelayedFunction(name, UncheckedArguments(object_or_empty(raw.get("inputSchema"))), self._send)
        super().__init__(name, options, function, ResultPacker(pack_untyped_result), None)
        visible_to = object_or_empty(object_or_empty(raw.get("_meta")).get("ui")).get("visibility")
        if is_array(visible_to) and "model" not in visible_to:
            self.facets[APP_FACET_NAME] = VIEW_ONLY_FACET
        if "security" in raw or SECURITY_META_KEY in object_or_empty(raw.get("_meta")):
            apply_warnings(self)

    def _send(self, call: Call, arguments: Json) -> Coroutine[Any, Any, Json]:
        params: Json = {"name": self.inner, "arguments": arguments}
        if self.must_be_task:
            params["task"] = {}
        return self.backend.relay(call, "tools/call", params)

    def result(self, call: Call, value: Any) -> Json:
        dialect = get_dialect(call)
        if dialect.stateless and "isError" in value and (missing := find_no_back_channel_error(value)) is not None:
            # A session's server can only say so in a result. Without sessions it is an error of the protocol.
            raise missing
        if type(value.get("content")) is not list:
            if "content" in value:
                raise make_malformed_result_error(self.backend.id, "content")
            if value.get("resultType") != "task":
                value["content"] = []
        return adapt_backend_result(prefix_tool_result(value, self.backend.prefix), dialect)

    def copy_as(self, name: str) -> RemoteTool:
        renamed = RemoteTool(self.backend, name, self.raw)
        renamed.facets, renamed.is_dangerous = self.facets, self.is_dangerous
        renamed.options, renamed.function = replace(self.options, name=name), self.function
        return renamed

    def describe(self, dialect: Dialect) -> Json:
        described = {**_filter_members(self.raw, dialect), "name": self.name}
        if isinstance(self.function.arguments, TransformedArguments):
            described["inputSchema"] = self.function.arguments.schema
        if is_object(listed := described.get("inputSchema")):
            described["inputSchema"] = ensure_properties(listed)
        if self.options.description:
            described["description"] = self.options.description
        described.pop("execution", None)  # whether it is a task there is nothing that a client here can ask for
        output = described.get("outputSchema")
        if output is not None and (
            "structured" not in dialect.has
            or ("any_structured" not in dialect.has and object_or_empty(output).get("type") != "object")
        ):
            del described["outputSchema"]
        # What this server makes of its hints and its security counts, not what it said itself: without warnings there
        # is nothing to say, and that a tool is harmless only this server's operator can say.
        described.pop("annotations", None)
        if "tool_annotations" in dialect.has and self.options.annotations:
            described["annotations"] = dict(self.options.annotations)
        described.pop("security", None)
        if IN_META in object_or_empty(described.get("_meta")):
            meta = {name: value for name, value in object_or_empty(described.pop("_meta")).items() if name != IN_META}
            described |= {"_meta": meta} if meta else {}
        return prefix_listed_tool(described, self.backend.prefix)

    def check_limits(self, limits: Limits) -> None:
        if (self.options.timeout or 0) > limits.tool_max:
            raise UsageError(
                f"{self.where}: timeout={self.options.timeout} is longer than the {limits.tool_max:g} s allowed",
                fix="shorten it, or serve with Limits(tool_max=…)",
            )
        if self.may_annotate:
            _ = self.param_headers


class RemotePrompt(BackendItemMixin, Prompt):
    """A prompt of a backend; see `RemoteTool`."""

    __slots__ = ("backend", "fronts", "inner", "raw")

    fronts: set[Hashable] | None

    def __init__(self, backend: Backend, name: str, raw: Json) -> None:
        self.backend, self.inner, self.raw, self.fronts = backend, str(raw["name"]), raw, None
        options = PromptOptions(
            name=name, description=string_or_none(raw.get("description")) or "", timeout=backend.timeout
        )
        super().__init__(name, options, RelayedFunction(name, UncheckedArguments({}), self._send), None)

    def _send(self, call: Call, arguments: Json) -> Coroutine[Any, Any, Json]:
        return self.backend.relay(call, "prompts/get", {"name": self.inner, "arguments": arguments})

    def result(self, call: Call, value: Any) -> Json:
        if not is_array(value.get("messages")):
            raise make_malformed_result_error(self.backend.id, "messages")
        return adapt_backend_result(prefix_prompt_result(value, self.backend.prefix), get_dialect(call))

    async def complete(self, call: Call, params: Json) -> Json:
        """`CompleteResult` for one of its arguments."""
        return await complete(self.backend, call, {**params, "ref": {**params["ref"], "name": self.inner}})

    def copy_as(self, name: str) -> RemotePrompt:
        return RemotePrompt(self.backend, name, self.raw)

    def describe(self, dialect: Dialect) -> Json:
        return {**_filter_members(self.raw, dialect), "name": self.name}


class RemoteResource(BackendItemMixin, Resource):
    """A resource, or a template, of a backend; see `RemoteTool`. `uri` is the one outside."""

    __slots__ = ("backend", "fronts", "raw")

    fronts: set[Hashable] | None

    def __init__(self, backend: Backend, uri: str, raw: Json, template: UriTemplate | None = None) -> None:
        self.backend, self.raw, self.fronts = backend, raw, None
        options = ResourceOptions(
            name=string_or_none(raw.get("name")) or uri,
            description=string_or_none(raw.get("description")) or "",
            mime_type=string_or_none(raw.get("mimeType")),
            timeout=backend.timeout,
        )
        super().__init__(uri, options, RelayedFunction(uri, UncheckedArguments({}), self._send), template, None)
        if uri.startswith(UI_URI_SCHEME):
            self.facets[APP_FACET_NAME] = VIEW_ONLY_FACET

    def _send(self, call: Call, arguments: Json) -> Coroutine[Any, Any, Json]:
        return self.backend.relay(call, "resources/read", arguments)

    async def read_contents(self, call: Call, uri: str, values: Json, cache: ResourceContentsCache) -> Json:
        seconds = self.bind_to_call(call)
        if not ANSWER_PARAMS.isdisjoint(call.params):
            await read_input_answers(call)
        prefix, dialect = self.backend.prefix, get_dialect(call)
        inner = prefix.strip_uri(uri)
        try:
            found = await self.function.run(call, {"uri": inner}, seconds)
        except RelayedError as error:
            if not _says_not_found(error, inner):
                raise
            raise ResourceNotFound(uri) from None  # its code depends on the version of the front
        if not is_array(found.get("contents")):
            raise make_malformed_result_error(self.backend.id, "contents")
        told = adapt_backend_result(prefix_contents(found, prefix), dialect)
        if call.terms.offer is not None and can_show_apps(call.terms.offer.capabilities):
            told = {**told, "contents": [self._add_server_key(content) for content in told["contents"]]}
        return {**build_cache_hints(dialect), **told}

    def _add_server_key(self, content: Any) -> Any:
        """A content that says whose it is, for a host of views. What it says itself does not count."""
        if not is_object(content):
            return content
        return {**content, "_meta": {**object_or_empty(content.get("_meta")), SERVER_ID_META_KEY: self.backend.id}}

    async def complete(self, call: Call, params: Json) -> Json:
        """`CompleteResult` for one of its variables."""
        ref = {**params["ref"], "uri": self.backend.prefix.strip_uri(params["ref"]["uri"])}
        return await complete(self.backend, call, {**params, "ref": ref})

    def copy_as(self, uri: str) -> RemoteResource:
        return RemoteResource(self.backend, uri, self.raw, self.template)

    def describe(self, dialect: Dialect) -> Json:
        return {**_filter_members(self.raw, dialect), "uriTemplate" if self.template is not None else "uri": self.uri}


def _says_not_found(error: RelayedError, uri: str | None) -> bool:
    """Whether a backend has no such resource: -32002 with a handshake; without, -32602 with the URI."""
    return error.code == RESOURCE_NOT_FOUND_CODE or (error.code == InvalidParams.code and error.data.get("uri") == uri)


async def complete(backend: Backend, call: Call, params: Json) -> Json:
    """Suggestions of a backend. `params` name its own prompt or template."""
    known = {name: params[name] for name in ("ref", "argument", "context") if name in params}
    seconds = backend.timeout or call.session.composition.limits.tool
    result = await call.engine.run_with_timeout(call, seconds, backend.relay(call, "completion/complete", known))
    return adapt_backend_result(result, get_dialect(call))


def _filter_members(raw: Json, dialect: Dialect) -> Json:
    """A listing without the members that a version does not know."""
    return {name: value for name, value in raw.items() if NEEDS.get(name) is None or NEEDS[name] in dialect.has}


def _mentions(value: Any, name: str) -> bool:
    if is_object(value):
        return name in value or any(_mentions(member, name) for member in value.values())
    return is_array(value) and any(_mentions(member, name) for member in value)


async def _elsewhere() -> None:
    """The function of a relayed item is in another process."""


class RemoteSkill(RemoteResource):
    """A skill of a backend, at its `SKILL.md`. `raw` is its entry; its frontmatter and digests stay as they are."""

    __slots__ = ()

    def build_list_entry(self, dialect: Dialect) -> Json:
        """The skill as its list shows it."""
        return prefix_skill(self.raw, self.backend.prefix)

    def copy_as(self, uri: str) -> RemoteSkill:
        return RemoteSkill(self.backend, uri, self.raw)


# -- What a backend says against its own tools: that one is dangerous, needs permissions, or has to be confirmed.
#
# A backend takes every call for ours, and us for its user. So its warnings hold here, where the caller is known: nobody
# gets by a mount what the backend would refuse it. What it says in favour of a tool counts for nothing.


def apply_warnings(tool: RemoteTool) -> None:
    """Treat a tool as one of ours that says the same. Raises UsageError if it contradicts itself."""
    listed = parse_tool_security(tool.inner, tool.raw)
    permissions = tuple(name for name in listed.permissions or () if is_permission_name(name))
    if not listed.security or not (listed.risk == "dangerous" or permissions or listed.confirmation_required):
        return
    risk: Any = "moderate" if listed.risk == "safe" else listed.risk
    security = Security(risk, permissions, confirm=listed.confirmation_required or None, where=tool.where)
    tool.facets[MGP_NAME] = ToolSecurity(security, ())
    tool.is_dangerous = risk == "dangerous"
