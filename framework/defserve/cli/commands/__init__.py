"""The subcommands: each module has a `main(argv)` that returns the exit code.

A command is imported only when it is used, so its imports may be heavy. `run` is the exception: its start-up counts.
Many files: one per command.

May import: `auth.api_keys`, `auth.local_token`, `auth.urls`, `cli`, `gateway`, `host`, `kernel`,
`protocols.mcp.asking.server_secret`, `protocols.mgp`, `runner`, `sandbox.layers`, `server`, `serving.openapi`,
`stores.audit`, `testing.plugin`, `tooling`.
"""
