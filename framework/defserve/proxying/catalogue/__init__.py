"""What a backend offers: its lists, the items made of them, their names and URIs outside, and where they are shown.

May import: `binding`, `core`, `guard.text`, `host`, `protocols.mcp`, `protocols.mgp.agreed`, `protocols.mgp.security`,
`proxying.boundary`, `proxying.conversations`, `proxying.descriptions`, `proxying.failures`, `proxying.relay`,
`proxying.targets`, `proxying.tasks`, `wire`.
"""
