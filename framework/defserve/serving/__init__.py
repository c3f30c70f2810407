"""Serves a server at an address: combines the protocol's rules, the runner and a transport.

Only the modules for the used address are imported. Over the network, a server whose tools need scopes must check
tokens; otherwise starting it raises UsageError.

May import: `auth`, `core`, `host.values`, `observing`, `protocols.mcp`, `protocols.mcpx`, `protocols.mgp.extension`,
`runner`, `transports.asgi`, `transports.http`, `wire`.
"""
