"""What other frameworks call the methods and options of a server, and what to write here.

Read only when a name does not exist. Whoever comes from FastMCP or the official SDK meets these errors first.
The whole table is in docs/migration.md.
"""

from __future__ import annotations

from typing import Final

_HTTP: Final = 'server.run(on="http://127.0.0.1:8000/mcp")'
_ASGI: Final = "server.asgi() is the ASGI app"
OWN_LOOP: Final = (
    "server.run() in the main thread, outside of `async def`; or server.asgi() under an ASGI server of yours;"
    " in a notebook: async with server.connect() as client"
)
"""For whoever has an event loop already."""
_LIST: Final = "in a test: async with server.connect() as client: await client.{0}()"

SERVER: Final = {
    "run_async": OWN_LOOP,
    "run_stdio_async": "server.run()",
    "run_http_async": _HTTP,
    "run_streamable_http_async": _HTTP,
    "run_sse_async": f"{_HTTP[:-1]}, legacy_sse=True)",
    "http_app": _ASGI,
    "streamable_http_app": _ASGI,
    "sse_app": "server.asgi(legacy_sse=True)",
    "asgi_app": _ASGI,
    "custom_route": "mount server.asgi() in Starlette or FastAPI, and add the route there",
    "state": 'notes = server.feature_set("notes.edit", "…"), then notes.state(Notebook)',
    "dependency_overrides": "server.override(open_db, fake_db)",
    "import_server": 'server.mount(child, prefix="…")',
    "as_proxy": 'server.mount(Command("python", "other.py")) or server.mount(Remote("https://…"))',
    "add_middleware": '@server.around("tools/call")',
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
    "set_logging_level": "nothing: clients choose the level themselves",
    "create_initialization_options": "server.run() needs none",
    "settings": "options of Server(…) and server.run(…)",
}
"""An attribute of their server → what to write."""

OPTIONS: Final = {
    **dict.fromkeys(("transport", "host", "port", "path", "mount_path", "streamable_http_path"), _HTTP),
    "sse_path": f"{_HTTP[:-1]}, legacy_sse=True)",
    "stateless_http": "nothing: requests of the newest version have no session, older clients have one",
    "json_response": "nothing: a response is JSON until there is more to say",
    "debug": 'server.run(log_level="debug")',
    "log_level": 'server.run(log_level="info")',
    "middleware": '@server.around("tools/call")',
    "tools": "@server.tool, or server.add_tool(function)",
    "dependencies": "the dependencies of your pyproject.toml",
    "auth_server_provider": "Server(auth=…): StaticTokens, ApiKeys, JWT, or a class with `verify`",
    "token_verifier": "Server(auth=…): StaticTokens, ApiKeys, JWT, or a class with `verify`",
    "mask_error_details": "nothing: details never leave the server, except those of ToolError",
    "show_banner": "nothing: there is no banner",
    **{f"on_duplicate_{kind}": "replace=True where a name is used again" for kind in ("tools", "resources", "prompts")},
    "on_duplicate": "replace=True where a name is used again",
    "uvicorn_config": "options of server.run(…), or server.asgi() under a uvicorn of yours",
}
"""An option of their server or its `run` → what to write."""

DECLARED: Final = {
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
    "enabled": "nothing: a tool that is not declared is not there",
    "serializer": "a return type; what it has as text is sent",
    "auth": "Server(auth=…), and scopes=[…] for a tool",
    "mimeType": "mime_type=…",
    "uri": 'the first argument: @server.resource("notes://{id}")',
    "run_in_thread": "nothing: a plain def runs in a thread",
}
"""An option of their decorators → what to write."""
