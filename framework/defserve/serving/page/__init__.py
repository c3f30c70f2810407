"""The page that a browser gets at a server's address: what this is, how to connect each client, and the tools.

It says what a client without a token is told, and stays below 10 kB. It needs no script but for its Copy buttons, and
loads nothing. Nothing here is imported before a browser asks.

May import: `core`, `guard.text`, `host.clients`, `protocols.mcp`, `protocols.mgp.agreed`, `transports.asgi`,
`transports.http.page`, `wire`.
"""
