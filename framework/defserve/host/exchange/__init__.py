"""A request of ours, from the moment it is sent to its reply: who follows it, its deadline, its session, its reply.

And what the peer sends beside replies: notifications, and requests of its own.

May import: `host.fields`, `host.link`, `transports.arrival`, `wire`.
"""
