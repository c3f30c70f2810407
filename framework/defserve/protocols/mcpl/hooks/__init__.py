"""Context hooks (MCPL §10): functions that add to what the model reads, and look at or change what it answers.

A hook runs only while its feature set is enabled, within a time limit, and in a call of its own. If a blocking hook
fails, the host is told and decides; other failures are logged and contribute nothing.

May import: `core`, `wire`, `protocols.mcp`, `protocols.mcpl.current`, `protocols.mcpl.errors`,
`protocols.mcpl.feature`, `protocols.mcpl.policies`, `protocols.mcpl.section`, `protocols.mcpl.turns`,
`protocols.mcpl.vocabulary`.
"""
