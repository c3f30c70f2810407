"""The views of a server (MCP apps), as a host may show them: what to put into a frame, and how to answer the view.

A view comes from a server that is not trusted. Its policy names only origins, its MIME type is exact, and it can call
only tools of its own server that are visible to views.

May import: `host.fields`, `host.tool_value`, `protocols.mcp.apps`, `protocols.mcp.failures`, `wire.messages`.
"""
