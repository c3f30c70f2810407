"""Events that a server pushes (MCPL §9), or keeps in an inbox for a host that polls.

An event counts once. If there is no room for it, the server is told, and may send it again.

May import: `host.caller`, `host.fields`, `host.mcpl`, `protocols.mcp.params`, `protocols.mcpl`.
"""
