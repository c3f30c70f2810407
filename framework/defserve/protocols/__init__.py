"""The protocols that a server speaks, each an extension of the core.

MGP, MCPL and MCPx build on MCP and never import one another. A protocol that was not negotiated is silent.

May import: nothing else of the package.
"""
