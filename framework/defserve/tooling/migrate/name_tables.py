"""What other frameworks call things, what they are called here, and what is said about the rest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

FOREIGN_PACKAGES: Final = ("fastmcp", "mcp", "mcp_types")
"""The packages whose names are rewritten."""

FOREIGN_SERVER_CLASSES: Final = frozenset({"FastMCP", "MCPServer"})

RENAMED_CLASSES: Final[Mapping[str, str]] = {
    "FastMCP": "Server",
    "MCPServer": "Server",
    "Context": "Context",
    "Image": "Image",
    "Audio": "Audio",
    "File": "File",
    "Icon": "Icon",
    "Depends": "Depends",
    "ToolError": "ToolError",
    "ResourceError": "ToolError",
    "PromptError": "ToolError",
    "McpError": "ToolError",
    "MCPError": "ToolError",
    "NotFoundError": "ToolError",
    "Message": "Message",
    "UserMessage": "User",
    "AssistantMessage": "Assistant",
    "TextContent": "Text",
    "LowLevelServer": "Server",
    "ToolResult": "ToolResult",
}
"""A name of theirs → ours, in `defserve`."""

STANDARD_LIBRARY_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "get_logger": ("logging", "getLogger"),
    "lifespan": ("contextlib", "asynccontextmanager"),
}
"""A name of theirs → a module of the standard library, and the name there."""

CONTENT_CLASSES: Final[Mapping[str, str]] = {
    "ImageContent": "Image",
    "AudioContent": "Audio",
    "EmbeddedResource": "Embedded",
    "ResourceLink": "Link",
    "CallToolResult": "ToolResult",
    "PromptMessage": "Message",
}
"""Names that become ours in annotations, and in calls whose arguments are known: ours are made from other values."""

FOREIGN_CLIENTS: Final = frozenset(
    "Client ClientSession stdio_client sse_client streamablehttp_client streamable_http_client"
    " create_connected_server_and_client_session".split()
)
"""What a program needs to be a client of theirs."""

CLIENT_CONTENT: Final = frozenset({"TextContent", *CONTENT_CLASSES})
"""What such a client reads."""

UNSUPPORTED_NAMES: Final[Mapping[str, str]] = {
    "TextContent": "their client reads it; client.call(…) of the `client` fixture returns the value",
    "Client": "in a test, use the `client` fixture or `async with server.connect() as client`",
    "Middleware": 'write @server.around("tools/call")',
    "get_context": "take a parameter `ctx: Context`",
    "get_access_token": "take a parameter `ctx: Context`; ctx.principal is who calls",
    "get_http_request": "ctx.principal is who calls; a call does not depend on how it came",
    "get_http_headers": "ctx.principal is who calls; a call does not depend on how it came",
    "CallToolResult": "return ToolResult(content, data=…), or raise ToolError(text) if it is an error",
    "ImageContent": 'write Image(data, "image/png"), with bytes that are not base64',
    "AudioContent": 'write Audio(data, "audio/wav"), with bytes that are not base64',
    "EmbeddedResource": "write Embedded(uri, text=…)",
    "ResourceLink": "write Link(uri, name)",
    "Tool": "write a function for each, with @server.tool(schema=…)",
    "stdio_server": "server.run() serves on stdio",
    "InitializationOptions": "server.run() needs no options",
    "NotificationOptions": "server.run() needs no options",
    "ToolAnnotations": 'write annotations={"readOnlyHint": True}',
    "StaticTokenVerifier": 'write Server(auth=StaticTokens({token: "name"}))',
    "JWTVerifier": "write Server(auth=JWT(…))",
    "create_proxy": "write server.mount(Command(…)) or server.mount(Remote(…))",
    "FastMCPProxy": "write server.mount(Command(…)) or server.mount(Remote(…))",
    **dict.fromkeys(("MiddlewareContext", "CallNext"), 'write @server.around("tools/call")'),
    "ErrorData": "raise ToolError for what a model should read",
    **dict.fromkeys(
        ("StreamableHTTPSessionManager", "SseServerTransport"),
        'write server.run(on="http://127.0.0.1:8000/mcp") in place of the app and the function around it',
    ),
    **dict.fromkeys(
        ("ClientSession", "stdio_client", "StdioServerParameters", "create_connected_server_and_client_session"),
        "in a test, use the `client` fixture or `async with server.connect() as client`",
    ),
    **dict.fromkeys(
        ("AcceptedElicitation", "DeclinedElicitation", "CancelledElicitation"),
        "ctx.ask(…) returns the value; it raises Declined or Dismissed",
    ),
    "GitHubProvider": 'write Server(auth=OAuthProxy("github", …))',
    "GoogleProvider": 'write Server(auth=OAuthProxy("google", …))',
    "TokenVerifier": "write Server(auth=…) with a class that has `verify`",
    "AuthSettings": "write Server(auth=StaticTokens(…)), OIDC, JWT, ApiKeys or OAuthProxy",
    "AccessToken": "ctx.principal is who calls",
    "TransportSecuritySettings": "write server.run(on=…, allowed_hosts=[…], allowed_origins=[…])",
    "PromptMessage": "write User(…) or Assistant(…)",
    "Prompt": "write a function with @server.prompt",
    "Resource": "write a function with @server.resource",
}
"""What has no counterpart of the same shape, and what to write."""

SERVER_OPTIONS: Final = frozenset("name version title instructions description lifespan icons website_url".split())
"""Options of their server that are options of ours."""

DROPPED_OPTIONS: Final = frozenset(
    "stateless_http json_response dependencies mask_error_details strict_input_validation debug log_level host port"
    " streamable_http_path sse_path message_path mount_path warn_on_duplicate_tools warn_on_duplicate_resources"
    " warn_on_duplicate_prompts on_duplicate on_duplicate_tools on_duplicate_resources on_duplicate_prompts"
    " show_banner run_in_thread".split()
)
"""Options that are left out without a word: they are the default here, or say where the server runs."""

PROTECTING_SERVER_OPTIONS: Final[Mapping[str, str]] = {
    "auth": "write Server(auth=StaticTokens(…)), OIDC, JWT, ApiKeys or OAuthProxy",
    "token_verifier": "write Server(auth=…) with a class that has `verify`",
    "auth_server_provider": "tokens are checked by Server(auth=…); signing in is elsewhere",
    "middleware": 'write @server.around("tools/call")',
    "transforms": "write server.mount(child, transform=Transform(…))",
    "include_tags": "write server.mount(child, transform=Transform(only=[…]))",
    "exclude_tags": "write server.mount(child, transform=Transform(hide=[…]))",
    "transport_security": "write server.run(on=…, allowed_hosts=[…], allowed_origins=[…]), or the same at server.asgi",
    "allowed_hosts": "write server.run(on=…, allowed_hosts=[…]), or the same at server.asgi",
    "allowed_origins": "write server.run(on=…, allowed_origins=[…]), or the same at server.asgi",
}
"""Options that may keep somebody out, and what to write. They stay, and a server with one of them does not start."""

PROTECTING_ITEM_OPTIONS: Final[Mapping[str, str]] = {
    "enabled": "remove the function, or its decorator",
    "auth": "write Server(auth=…), and scopes=[…] here",
    "exclude_args": "write Annotated[T, Depends(f)] for each",
}
"""The same, for the options of a tool, resource or prompt."""

ADDRESS_GUARD_OPTIONS: Final = frozenset({"allowed_hosts", "allowed_origins"})
"""Protecting options of their `run` and `http_app` that ours have, too."""

ITEM_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "tool": frozenset("name title description tags annotations meta timeout icons task structured".split()),
    "resource": frozenset("uri name title description mime_type annotations meta icons timeout size".split()),
    "prompt": frozenset("name title description meta icons timeout".split()),
}

DROPPED_OPTION_HINTS: Final[Mapping[str, str]] = {
    "version": "of two with one name keep one, or give each a name of its own",
    "serializer": "return the text itself",
    "output_schema": "the return type says it",
    "tools": "call server.add_tool(function) for each",
    "providers": "call server.mount(child) for each",
}
"""Options that are left out → what to do instead."""

RENAMED_OPTIONS: Final[Mapping[str, str]] = {"structured_output": "structured", "_meta": "meta"}

LOG_LEVELS: Final = frozenset("debug info notice warning error critical alert emergency".split())

RENAMED_CONTEXT_MEMBERS: Final[Mapping[str, str]] = {
    "request_id": "trace_id",
    "client_id": "principal",
    "lifespan_context": "lifespan",
}
"""Attributes of their context → ours."""

UNSUPPORTED_CONTEXT_MEMBERS: Final[Mapping[str, str]] = {
    "elicit": "write value = await ctx.ask(message, kind); it raises Declined or Dismissed",
    "set_state": "write Depends(…) for one call, State[Model] for what is kept",
    "get_state": "write Depends(…) for one call, State[Model] for what is kept",
    "delete_state": "write Depends(…) for one call, State[Model] for what is kept",
    "session_id": "ctx.session is the conversation, ctx.principal who calls",
    "read_resource": "call the function of the resource",
    "fastmcp": "use the server object itself",
    "session": "ctx.session is another object here",
    "request_context": "write ctx.lifespan, ctx.session or ctx.call",
    "get_http_request": "ctx.principal is who calls",
}

UNSUPPORTED_SERVER_MEMBERS: Final[Mapping[str, str]] = {
    "custom_route": "mount server.asgi() in Starlette or FastAPI, and add the route there",
    "add_middleware": 'write @server.around("tools/call")',
    "as_proxy": "write server.mount(Command(…)) or server.mount(Remote(…))",
    "completion": 'write @server.completion("target", "argument"), one for each argument',
    "get_tools": "in a test: client.tools()",
    "list_tools": "in a test: client.tools()",
    "call_tool": "in a test: client.call(name, …)",
    "read_resource": "in a test: client.read(uri)",
    "get_context": "take a parameter `ctx: Context`",
    "enable": "write server.add_tool(…)",
    "disable": "write server.remove_tool(name)",
    "add_transform": "write server.mount(child, transform=Transform(…))",
    "set_logging_level": "remove it: clients choose the level themselves",
    "session_manager": "remove it: server.asgi() needs no wiring",
    "middleware": 'write @server.around("tools/call")',
    "list_resources": "in a test: client.resources()",
    "list_prompts": "in a test: client.prompts()",
    "get_prompt": "in a test: client.prompt(name, …)",
    "get_tool": "keep what you need of it beside the function",
    "add_provider": "write server.mount(child)",
    "_mcp_server": "this is private: write what it is for with Server(…) or @server.around(…)",
    "_tool_manager": "this is private: write server.add_tool(…) or server.remove_tool(name)",
    "settings": "these are options of Server(…) and server.run(…)",
}

UNSUPPORTED_MEDIA_MEMBERS: Final[Mapping[str, str]] = {
    "to_data_uri": 'write f"data:{type};base64,{base64.b64encode(data).decode()}"',
    "to_image_content": "use the Image itself",
    "to_audio_content": "use the Audio itself",
    "to_resource_content": "use the File itself",
}
"""Methods of their Image, Audio and File."""

_HINTS_BY_NAME: Final = {
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
}
TOOL_HINTS: Final[Mapping[str, str]] = {**_HINTS_BY_NAME, **{hint: hint for hint in _HINTS_BY_NAME.values()}}
"""Attributes of their ToolAnnotations, as both versions of the SDK write them."""

IMPLIED_TRANSPORTS: Final[Mapping[str, str]] = {
    "run": "stdio",
    "run_async": "stdio",
    "run_stdio_async": "stdio",
    "run_http_async": "http",
    "run_streamable_http_async": "http",
    "run_sse_async": "sse",
}
"""What serves with their server → the transport, if none is named."""

RENAMED_RUN_METHODS: Final[Mapping[str, str]] = {
    "run_async": "run()",
    "run_stdio_async": "run()",
    "run_http_async": "run(on=…)",
    "run_streamable_http_async": "run(on=…)",
    "run_sse_async": "run(on=…, legacy_sse=True)",
    "http_app": "asgi()",
    "streamable_http_app": "asgi()",
    "sse_app": "asgi(legacy_sse=True)",
    "import_server": "mount(…)",
}
"""Verbs of their servers that ours have under another name."""

ASGI_APP_METHODS: Final[Mapping[str, str]] = {
    "http_app": "", "streamable_http_app": "", "asgi_app": "", "sse_app": "legacy_sse=True",
}  # fmt: skip
"""What makes an ASGI app of their server → the option of `asgi` that does the same."""

UNSUPPORTED_LOW_LEVEL_MEMBERS: Final[Mapping[str, str]] = {
    "request_context": "write a function for this tool with a parameter `ctx: Context`, which has session, lifespan,"
    " progress and log",
    "request_handlers": "write @server.tool, @server.resource or @server.prompt",
    "notification_handlers": "remove it",
    "get_capabilities": "remove it: the server knows what it offers",
}

LOW_LEVEL_HINT: Final = "write a function for each, with @server.tool(schema=…), and migrate again"
"""What becomes of tools of a server of the low level that are not found."""

LOW_LEVEL_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("list_prompts", "get_prompt"),
        "write a function for each with @server.prompt(name=…), which returns its text, or a list of User(…) and"
        " Assistant(…); remove list_prompts and get_prompt, and migrate again",
    ),
    **dict.fromkeys(
        ("list_resources", "list_resource_templates", "read_resource"),
        'write a function for each with @server.resource("scheme://{name}"), which returns its content; remove'
        " list_resources, list_resource_templates and read_resource, and migrate again",
    ),
    "completion": 'write @server.completion("target", "argument"), one for each argument; remove it, and migrate again',
    "set_logging_level": "remove it, and migrate again: clients choose the level themselves",
    "progress_notification": "remove it, and migrate again",
    **dict.fromkeys(("subscribe_resource", "unsubscribe_resource"), "remove it, and migrate again: ctx has updates"),
}
"""Handlers of a server of the low level, but those of tools, and what to write."""

LOW_LEVEL_LISTS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("list_prompts",): ("get_prompt",),
    ("list_resources", "list_resource_templates"): ("read_resource",),
}
"""What lists something → what gets one of it."""

LOW_LEVEL_TOOL_OPTIONS: Final[Mapping[str, str]] = {
    **{name: name for name in ("name", "title", "description", "annotations", "icons", "meta")},
    **dict.fromkeys(("inputSchema", "input_schema"), "schema"),
    "_meta": "meta",
}
"""Fields of their Tool → options of ours."""

SHOWN_ERRORS: Final = frozenset({"ToolError", "ResourceError", "PromptError", "NotFoundError", "McpError", "MCPError"})
"""Exceptions whose text a model reads."""

MODULES_WITHOUT_EFFECT: Final = sys.stdlib_module_names | {"anyio", "typing_extensions"}
"""Modules that nobody imports for what their import does."""


# -- What a person has to look at after a program was rewritten.


class MigrationNote(NamedTuple):
    """Something that is left to do by hand: the line in the program as it was, and what to do."""

    line: int
    text: str
