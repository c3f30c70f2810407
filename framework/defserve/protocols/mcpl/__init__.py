"""MCPL: a server that takes part in a conversation: it pushes, hooks into inference, infers, keeps channels and state.

A host switches each feature set on and off; what it has not enabled does not act. Hosts without MCPL see the tools and
nothing else. The files here are of two kinds. Below the rooms: `policies`, `current`, `feature`, `peers`, `section`,
`turns`, `content`, `errors`. Above them: `sections`, `feature_sets`, `extension`, which no room imports.

May import: `binding.content`, `core`, `wire`, `stores.store`, `protocols.mcp`.
"""
