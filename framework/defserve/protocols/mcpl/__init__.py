"""MCPL lets a server take part in a conversation: push events, hook into the model's turns, ask it, keep state.

A host switches each feature set on and off; what it has not enabled does not act. Hosts without MCPL see the tools and
nothing else.

The rooms may import these files: `policies`, `current`, `feature`, `peers`, `section`, `turns`, `content`, `instants`,
`errors`. These import the rooms, and no room imports them: `section_registry`, `feature_sets`, `extension`.

May import: `auth.authority`, `auth.principals`, `binding.content`, `core`, `wire`, `stores.store`, `protocols.mcp`.
"""
