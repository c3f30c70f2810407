"""The skills of a server (SEP-2640), as a host may use them: nothing is fetched ahead, and everything is verified.

A file that differs from its entry in size or digest, or a `SKILL.md` whose frontmatter differs, is refused, and the
skill with it. A digest says that the file is the one that was listed. It does not say that its server can be trusted.

May import: `host.fields`, `protocols.mcp.skills`.
"""
