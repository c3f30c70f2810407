"""What the panels of the page ask their host side for. One file a panel; each has its `VERBS`.

A verb takes the inspection and the request, and returns what the page gets, as JSON. It raises the errors of a client
as they are: the page shows them with their `fix:`.

May import: `host`, `inspector.apps`, `inspector.calls`, `inspector.inspection`, `inspector.items`, `inspector.kernels`,
`inspector.protocol`, `inspector.recording`, `inspector.states`, `inspector.topic`, `protocols.mcp.apps`,
`protocols.mcp.resources.uri_expansion`, `protocols.mcp.versions`, `protocols.mcpl`, `redaction`,
`tooling.lint.definitions`, `wire`.
"""
