"""What the panels of the page ask their host side for. One file a panel; each has its `VERBS`.

A verb takes the inspection and the request, and returns what the page gets, as JSON. It raises the errors of a client
as they are: the page shows them with their `fix:`.

Many files: every panel has one, or two with what only it needs.

May import: `host`, `inspector.inspection`, `inspector.kernels`, `inspector.protocol`, `inspector.recording`,
`inspector.states`, `protocols.mcp.resources.uri_expansion`, `protocols.mcpl`, `tooling.lint.definitions`, `wire`.
"""
