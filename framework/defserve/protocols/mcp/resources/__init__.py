"""Resources: reading URIs and templates, caching their contents for their `ttl`, and telling clients of changes.

A caller that may not see a URI gets the same answer as for a URI that does not exist.

May import: `auth.principals`, `auth.remembered`, `binding.content`, `binding.packers`, `binding.results`,
`binding.signature`, `core`, `protocols.mcp.content`, `protocols.mcp.failures`, `protocols.mcp.function`,
`protocols.mcp.items`, `protocols.mcp.lifecycle`, `protocols.mcp.listing`, `protocols.mcp.params`, `wire.codec`,
`wire.messages`.
"""
