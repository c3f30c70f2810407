"""Problems in the definitions of a server, found before a model runs into them.

A rule is a small function: definitions in, findings out. Rules only read; they never start the server or call a tool.

May import: `binding.arguments.compact`, `binding.arguments.explicit`, `binding.arguments.patterns`, `context`,
`guard.text`, `protocols.mcp.apps`, `protocols.mcp.items`, `protocols.mcp.skills.skill`, `protocols.mcpl.vocabulary`,
`protocols.mgp`, `server`, `tooling.listing`, `tooling.packaging.private_files`, `tooling.packaging.secret_contents`.
"""
