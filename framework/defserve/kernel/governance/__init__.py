"""What a kernel enforces for every server behind it, whether or not that server knows MGP (§5, §6, §8.2, §15).

Marks come from mgp.toml. What a server says of its own tools can make the kernel more careful, never less, unless the
operator trusts the server. A tool that changes after it was first seen is reported, or held until an operator approves
it. Only operators add and remove servers, and see all of them.
"""
