"""Code mode: one tool in which a model writes Python that calls the other tools of the server.

The code runs in Monty, in a process that can reach nothing. Each tool it calls is a call of its own: it passes
permissions, guards, confirmation, audit and limits as if the client had made it. No call is made twice.

May import: `core.call`, `core.extension`, `core.registry`, `host.tool_value`, `protocols.mcp.apps.facet`,
`protocols.mcp.asking.parking`, `protocols.mcp.failures`, `protocols.mcp.lifecycle`, `protocols.mcp.reporting`,
`protocols.mcp.tools.inner_calls`, `protocols.mcp.tools.tools`, `sandbox`, `wire.messages`.
"""
