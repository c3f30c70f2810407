"""Resources: what URIs and templates give, remembered as long as they say, and who is told of changes.

A URI that a caller may not see is as unknown to it as one that does not exist.

May import: `binding.content`, `core`, `protocols.mcp.content`, `protocols.mcp.failures`, `protocols.mcp.function`,
`protocols.mcp.items`, `protocols.mcp.lifecycle`, `protocols.mcp.listing`, `protocols.mcp.params`, `wire.messages`.
"""
