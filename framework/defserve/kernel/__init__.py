"""A kernel: many servers run, watched and served as one, as mgp.toml says (MGP §11, §15).

The kernel is a `Server` like any other, filled by the servers behind it. So every transport, credential check and
limit works in front of it. One bad server never holds up another or the kernel.

May import: `auth`, `core`, `kernel`, `protocols.mcp`, `protocols.mgp`, `proxying`, `server`, `wire.messages`.
"""
