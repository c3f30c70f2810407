"""Channels (MCPL §14): those of a server, and the messages that come in and go out.

A message counts once, even if it is repeated. A channel that the policy does not permit is neither kept nor written to.

May import: `host.caller`, `host.fields`, `host.mcpl`, `protocols.mcp.params`, `protocols.mcpl`.
"""
