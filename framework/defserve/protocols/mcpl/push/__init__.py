"""Push events (MCPL §9): telling hosts that something happened.

An event keeps its id and counts once, however often it is sent. A slow or absent host delays nobody. Events for hosts
that cannot be called wait in an inbox, if the feature set has one.

May import: `binding.functions`, `core`, `wire`, `protocols.mcp`, `protocols.mcpl.content`, `protocols.mcpl.current`,
`protocols.mcpl.errors`, `protocols.mcpl.feature`, `protocols.mcpl.instants`, `protocols.mcpl.peers`,
`protocols.mcpl.policies`, `protocols.mcpl.section`.
"""
