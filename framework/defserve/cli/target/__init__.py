"""The server that a command is about: found by name, connected to, listed.

Code of this environment is loaded; a client connects to everything else. Errors are UsageError, PeerGone or
PeerTimeout, and name the option that helps.

May import: `auth.local_token`, `auth.urls`, `cli.answers`, `cli.log_filters`, `cli.option_types`, `cli.screen`,
`cli.tracebacks`, `core.composition`, `host`, `kernel`, `protocols.mcp.versions`, `tooling.clients`,
`tooling.lint.definitions`, `tooling.listing`, `tooling.loading`, `tooling.scaffold.locating`,
`transports.client_errors`.
"""
