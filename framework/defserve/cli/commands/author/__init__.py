"""Commands for who writes a server: from a new project to a published package.

May import: `cli`, `host.mgp.security`, `protocols.mgp`, `server`, `serving.openapi`, `testing.plugin`, `tooling`.
"""
