"""Where a server serves, by its address: here the protocol's rules, the runner and a transport are put together.

Nothing is imported for an address that is not used. Over the network, scopes that nobody could prove are refused at
start.

May import: `auth`, `core`, `host.values`, `observing`, `protocols.mcp`, `protocols.mcpx`, `protocols.mgp.extension`,
`runner`, `transports.asgi`, `transports.http`, `wire`.
"""
