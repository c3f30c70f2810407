"""Conversations with a backend: one open one (`channel`), who may share one (`fronts`), and all of them.

May import: `auth.authority`, `core`, `host`, `protocols.mcp`, `protocols.mgp.agreed`, `proxying.failures`,
`proxying.mounted`, `proxying.restarts`, `proxying.states`, `proxying.targets`, `wire`.
"""
