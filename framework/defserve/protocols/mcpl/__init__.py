"""MCPL lets a server take part in a conversation: push events, hook into the model's turns, ask it, keep state.

A host switches each feature set on and off, or grants what it uses; what it has not enabled does not act. Hosts of two
versions are served at once: `vocabulary` says what a version means. Hosts without MCPL see the tools and nothing else.

The rooms may import these files: `vocabulary`, `grants`, `policies`, `current`, `feature`, `peers`, `section`, `turns`,
`content`, `instants`, `errors`. These import the rooms, and no room imports them: `section_registry`, `feature_sets`,
`updates`, `extension`.

May import: `auth.authority`, `auth.principals`, `binding.content`, `core`, `wire`, `stores.store`, `protocols.mcp`.
"""
