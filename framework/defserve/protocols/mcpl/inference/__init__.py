"""Inference (MCPL §11–12): the host's model, asked to write, whole or as a stream, and asked what it is.

Inference is refused inside a context hook, where the host would wait for itself. In the stateless era a call asks for
sampling instead.

May import: `binding.content`, `core`, `wire`, `protocols.mcp`, `protocols.mcpl.content`, `protocols.mcpl.current`,
`protocols.mcpl.feature`, `protocols.mcpl.peers`, `protocols.mcpl.section`, `protocols.mcpl.turns`.
"""
