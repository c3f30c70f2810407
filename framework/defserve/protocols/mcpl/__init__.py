"""MCPL lets a server take part in a conversation: push events, hook into inference, infer, keep channels and state.

A host switches each feature set on and off. A set that is not enabled does nothing. Hosts without MCPL see the tools
and nothing else. The folders here are the sections. They import `policies`, `current`, `feature`, `peers`, `section`,
`turns`, `content` and `errors`, and never `sections`, `feature_sets` and `extension`, which import them.

May import: `binding.content`, `core`, `wire`, `stores.store`, `protocols.mcp`.
"""
