"""Serves a server at an address: combines the protocol's rules, the runner and a transport.

Nothing is imported for an address that is not used. A server on the network
does not start if a tool needs scopes and no `auth` could grant them.

May import: `auth`, `core`, `host.tool_value`, `observing`, `protocols.mcp`, `protocols.mcpx`,
`protocols.mgp.extension`, `runner`, `serving.page`, `serving.sharing`, `transports.asgi`, `transports.http`, `wire`.
"""
