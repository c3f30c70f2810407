"""The keyword options of `Server` and its decorators, for type checkers and for errors about misspelt ones.

With what other frameworks call them. Imported only when an option is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mgp.terms import SecurityOptionsDict

if TYPE_CHECKING:
    from defserve.protocols.mcp.lifecycle import Icon
    from defserve.protocols.mcp.transforms import Transform
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mcpl.state.ownership import StateOwnerKind
    from defserve.protocols.mcpl.state.states import BigIntegerPolicy, StateConcurrency, StateMode
    from defserve.protocols.mgp.events import EventChannel
    from defserve.protocols.mgp.security import Security
    from defserve.proxying.mounted import RestartPolicy
    from defserve.stores.store import Store


class ItemFields(TypedDict, total=False):
    """See `protocols.mcp.items.ItemOptions`."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon | str | Mapping[str, Any]]
    meta: Mapping[str, Any]
    timeout: float
    inline: bool
    scopes: Sequence[str]


class ToolFields(ItemFields, total=False):
    """See `protocols.mcp.tools.ToolOptions`."""

    annotations: Mapping[str, Any]
    structured: bool | Literal["bare"]
    text: Callable[[Any], str] | str | Literal[False]
    schema: Mapping[str, Any]
    tags: Sequence[str]
    keywords: Sequence[str]
    security: Security
    task: Literal["optional", "required"]
    ttl: float
    poll: float
    retry: int
    begin: Literal["now", "later"]
    app: Callable[..., Any] | str
    visible_to: Literal["model", "app"]


class ResourceFields(ItemFields, total=False):
    """See `protocols.mcp.resources.ResourceOptions`."""

    mime_type: str
    size: int
    annotations: Mapping[str, Any]
    ttl: float
    listed: bool


class CspFields(TypedDict, total=False):
    """The origins that a view may reach. Without any, it has its own inline scripts and styles, and no network."""

    connect: Sequence[str]
    """For `fetch`, XHR and WebSockets."""
    resource: Sequence[str]
    """For scripts, styles, images, fonts and media."""
    frame: Sequence[str]
    """For frames inside the view."""
    base_uri: Sequence[str]
    """For `<base>`."""


class AppFields(ItemFields, total=False):
    """See `protocols.mcp.apps.AppOptions`."""

    csp: CspFields
    permissions: Sequence[Literal["camera", "microphone", "geolocation", "clipboard_write"]]
    border: bool
    domain: str
    display_modes: Sequence[Literal["inline", "fullscreen", "pip"]]
    bridge: bool
    listed: bool
    ttl: float


class PromptFields(ItemFields, total=False):
    """See `protocols.mcp.prompts.PromptOptions`."""


class EventFields(ItemFields, total=False):
    """See `protocols.mcp.events.event_types.EventTypeOptions`."""

    delivery: Sequence[Literal["poll", "push", "webhook"]]
    poll: float
    also: Sequence[EventChannel | FeatureSet]


class FeatureSetFields(TypedDict, total=False):
    """See `protocols.mcpl.feature_sets.FeatureSet`."""

    scoped: bool
    uses: Sequence[str]
    model_info: bool
    inbox: bool
    claude_channel: bool
    tag_ontology: Mapping[str, Any]


class StateFields(TypedDict, total=False):
    """See `protocols.mcpl.state.states.StateOptions`."""

    keep: int | None
    ttl: float | None
    mode: StateMode
    per: StateOwnerKind
    concurrency: StateConcurrency
    store: str | Store | None
    big_integers: BigIntegerPolicy | None


class MountFields(TypedDict, total=False):
    """See `proxying.mounted.BackendOptions`."""

    id: str
    tools: Sequence[str] | Mapping[str, Any]
    timeout: float
    in_flight: int
    children: int
    spares: int
    idle: float
    restarts: RestartPolicy
    transform: Transform


class ServerFields(SecurityOptionsDict, total=False):
    """What a server says about itself; see `protocols.mcp.lifecycle.ServerDescription`."""

    title: str
    instructions: str
    description: str
    website_url: str
    icons: Sequence[Icon | str | Mapping[str, Any]] | None


def refuse_unknown_option(
    given: Collection[str],
    known: Collection[str],
    subject: str,
    where: str,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises UsageError for the first option that does not exist. `elsewhere`: options of others → what to write."""
    for name in given:
        if name not in known:
            longer = [each for each in known if each.startswith(name)]  # `desc`
            fix = did_you_mean(
                longer[0] if len(longer) == 1 else name, known, f"use some of {', '.join(sorted(known))}"
            )
            # Python's own error, which led here, says less.
            raise UsageError(f"{subject} has no option {name!r}", where=where, fix=elsewhere.get(name, fix)) from None


def refuse_unknown_fields(
    given: Mapping[str, Any], fields: type[Any], function: Callable[..., Any], subject: str, where: str
) -> None:
    """Raises UsageError for an option that neither `fields`, a typed dictionary, nor the function itself has."""
    by_place = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    known = [*fields.__annotations__, *by_place, *(function.__kwdefaults__ or ())]
    refuse_unknown_option(given, known, subject, where, SERVER_OPTION_FIXES)


def check_shared_and_feature_sets(shared: str | None, feature_sets: str, where: str) -> None:
    """Raises UsageError for values of these options of `Server` that are not possible."""
    if shared is not None and not shared.startswith(("redis:", "rediss:", "redis+unix:", "redis+sentinel:")):
        scheme = shared.partition(":")[0]
        raise UsageError(
            f"Server(shared='{scheme}:…') is not the address of a Redis, which sessions need",
            where=where,
            fix="use 'redis://localhost:6379/0' or 'redis+sentinel://host:26379,host:26379/service/0'"
            + ("; Postgres is for the store: Server(store='postgres://…')" if scheme.startswith("postgres") else ""),
        )
    if feature_sets not in ("open", "strict"):
        raise UsageError(
            f"Server(feature_sets={feature_sets!r}) is not possible",
            where=where,
            fix='say "open" (a set is on until the host says otherwise) or "strict" (it is off until then)',
        )


# -- What other frameworks call the methods and options of a server, and what to write here.
#
# Read only when a name does not exist. Whoever comes from FastMCP or the official SDK meets these errors first. The
# whole table is in docs/migration.md.


_HTTP: Final = 'server.run(on="http://127.0.0.1:8000/mcp")'
_ASGI: Final = "server.asgi() is the ASGI app"
OWN_LOOP_FIX: Final = (
    "server.run() in the main thread, outside of `async def`; or server.asgi() under an ASGI server of yours;"
    " in a notebook: async with server.connect() as client"
)
"""For whoever has an event loop already."""
_LIST: Final = "in a test: async with server.connect() as client: await client.{0}()"

SERVER_ATTRIBUTE_FIXES: Final = {
    "run_async": OWN_LOOP_FIX,
    "run_stdio_async": "server.run()",
    "run_http_async": _HTTP,
    "run_streamable_http_async": _HTTP,
    "run_sse_async": f"{_HTTP[:-1]}, legacy_sse=True)",
    "http_app": _ASGI,
    "streamable_http_app": _ASGI,
    "sse_app": "server.asgi(legacy_sse=True)",
    "asgi_app": _ASGI,
    "custom_route": "mount server.asgi() in Starlette or FastAPI, and add the route there",
    "dependency_overrides": "server.override(open_db, fake_db)",
    "import_server": 'server.mount(child, prefix="…")',
    "as_proxy": 'server.mount(Command("python", "other.py")) or server.mount(Remote("https://…"))',
    "add_middleware": '@server.around("tools/call")',
    "middleware": '@server.around("tools/call")',
    "list_tools": _LIST.format("tools"),
    "get_tools": _LIST.format("tools"),
    "get_tool": _LIST.format("tools"),
    "list_resources": _LIST.format("resources"),
    "get_resources": _LIST.format("resources"),
    "list_resource_templates": _LIST.format("templates"),
    "list_prompts": _LIST.format("prompts"),
    "get_prompts": _LIST.format("prompts"),
    "get_prompt": '@server.prompt declares one; in a test: await client.prompt("name")',
    "call_tool": '@server.tool for each tool; in a test: await client.call("tool", key=value)',
    "read_resource": '@server.resource("notes://{id}"); in a test: await client.read(uri)',
    "get_context": "a parameter of the tool: ctx: Context",
    "request_context": "a parameter of the tool: ctx: Context",
    "set_logging_level": "leave it out; clients choose the level themselves",
    "create_initialization_options": "server.run() needs none",
    "settings": "options of Server(…) and server.run(…)",
}
"""An attribute of their server → what to write."""

SERVER_OPTION_FIXES: Final = {
    **dict.fromkeys(("transport", "host", "port", "path", "mount_path", "streamable_http_path"), _HTTP),
    "sse_path": f"{_HTTP[:-1]}, legacy_sse=True)",
    "stateless_http": "leave it out; requests of the newest version have no session, older clients have one",
    "json_response": "leave it out; a response is JSON until there is more to say",
    "debug": 'server.run(log_level="debug")',
    "log_level": 'server.run(log_level="info")',
    "middleware": '@server.around("tools/call")',
    "tools": "@server.tool, or server.add_tool(function)",
    "dependencies": "the dependencies of your pyproject.toml",
    "auth_server_provider": "Server(auth=…): StaticTokens, ApiKeys, JWT, or a class with `verify`",
    **dict.fromkeys(
        ("transport_security", "allowed_hosts", "allowed_origins"),
        "server.run(on=…, allowed_hosts=[…], allowed_origins=[…]), or the same options of server.asgi(…)",
    ),
    "include_tags": "server.mount(child, transform=Transform(only=[…]))",
    "exclude_tags": "server.mount(child, transform=Transform(hide=[…]))",
    "transforms": "server.mount(child, transform=Transform(…))",
    "token_verifier": "Server(auth=…): StaticTokens, ApiKeys, JWT, or a class with `verify`",
    "mask_error_details": "leave it out; details never leave the server, except those of ToolError",
    "dereference_schemas": "leave it out; schemas are published without references",
    "show_banner": "leave it out; there is no banner",
    **{f"on_duplicate_{kind}": "replace=True where a name is used again" for kind in ("tools", "resources", "prompts")},
    "on_duplicate": "replace=True where a name is used again",
    "uvicorn_config": "options of server.run(…), or server.asgi() under a uvicorn of yours",
}
"""An option of their server or its `run` → what to write."""

DECORATOR_OPTION_FIXES: Final = {
    **dict.fromkeys(("safe", "read_only", "readonly"), "@safe below @server.tool"),
    **dict.fromkeys(("dangerous", "destructive"), '@dangerous("filesystem.write") below @server.tool'),
    **dict.fromkeys(("permission", "permissions"), '@dangerous("filesystem.write") below @server.tool'),
    **dict.fromkeys(
        ("confirm", "confirmation"), "@dangerous below @server.tool is confirmed; @dangerous(…, confirm=False) is not"
    ),
    "structured_output": "structured=True or structured=False",
    "output_schema": "a return type: the schema is made from it",
    "input_schema": "types of the parameters, or schema={…}",
    "exclude_args": "Annotated[T, Depends(f)], or ctx: Context: they are injected",
    "enabled": "leave it out; a tool that should not be there is not declared, or is removed: server.remove_tool(name)",
    "serializer": "a return type; what it has as text is sent",
    "auth": "Server(auth=…), and scopes=[…] for a tool",
    "mimeType": "mime_type=…",
    "uri": 'the first argument: @server.resource("notes://{id}")',
    "run_in_thread": "leave it out; a plain def runs in a thread",
}
"""An option of their decorators → what to write."""
