"""The checkpoints that the inspector knows of: those its own calls made, and those in a store that it can read.

A tree from the wire holds what the server told this inspector. A tree from a store holds every checkpoint of an owner.
Both are read in the same way. Nothing here changes a tree: rolling back is a request to the server.

May import: `auth.principals`, `host.mcpl.state`, `inspector.recording.masking`, `protocols.mcpl.state`, `stores`,
`wire`.
"""
