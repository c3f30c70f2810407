"""What a backend offers: its lists, the items made of them, their names and URIs outside, and where they are shown.

May import: `binding`, `core`, `host`, `protocols.mcp`, `proxying.conversations`, `proxying.relay`, `proxying.tasks`,
`proxying.targets`, `wire`.
"""
