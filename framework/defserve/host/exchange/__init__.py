"""A request of ours, from the moment it is sent to its reply: who follows it, its deadline, its session, its reply.

May import: `host.link`, `wire`.
"""
