"""Conversations with a backend: one open one (`channel`), who may share one (`fronts`), all of them, and what a server
is told of permissions (`granting`).

May import: `auth.authority`, `core`, `host`, `protocols.mcp`, `protocols.mgp.agreed`, `protocols.mgp.permissions`,
`protocols.mgp.security`, `proxying.boundary`, `proxying.descriptions`, `proxying.failures`, `proxying.mounted`,
`proxying.restarts`, `proxying.states`, `proxying.targets`, `wire`.
"""
