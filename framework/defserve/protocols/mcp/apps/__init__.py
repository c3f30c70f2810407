"""Apps (extension `io.modelcontextprotocol/ui`, 2026-01-26): HTML views that hosts show beside the result of a tool.

One declaration makes the resource, its MIME type and the tool's link agree. A server with a tool that names a missing
view does not start. A client that did not offer apps sees plain MCP: no views, no links, no tools for views alone. What
a tool with a view answers always has a text. `visible_to="app"` is a wish that hosts follow, never a protection.

`extension` folds the room, and is imported when a server declares a view or links a tool.

May import: `binding.functions`, `core`, `protocols.mcp.function`, `protocols.mcp.lifecycle`,
`protocols.mcp.prefixes`, `protocols.mcp.resources`, `protocols.mcp.tools`, `wire.messages`.
"""
