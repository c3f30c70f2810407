"""What the command line is made of: projects, client settings, packages, documents, lint, the development server.

None of it is needed to serve.

May import: `auth`, `core`, `host.targets`, `protocols.mcp.apps.offer`, `protocols.mcp.versions`,
`protocols.mgp.agreed`, `server.server`, `wire.codec`.
"""
