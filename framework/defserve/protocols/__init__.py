"""The protocols that a server speaks, each an extension of the core.

MGP, MCPL and MCPx build on MCP and never import one another. If a peer did not negotiate a protocol, nothing of it is
sent to that peer.
"""
