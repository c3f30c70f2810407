"""The child process: imports the author's module, reports its files, and serves.

It ends when its standard input does. It never imports the parent, which starts it with `python -m`.

May import: `host.targets`, `protocols.mcp.resources.subscriptions`, `runner`, `server`, `serving.web`,
`tooling.devserver.client_setup`, `tooling.devserver.plan`, `tooling.frames`, `tooling.loading`, `transports.asgi`,
`transports.http`.
"""
