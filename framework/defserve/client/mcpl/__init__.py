"""MCPL for a host: `Mcpl` has the options, `McplPeer` is one server. Each feature has a module.

A feature gets a few methods of the client and the policy of feature sets, not the client itself. Everything the host
does or refuses for a server is audited. A server that does not speak MCPL gets no MCPL messages.
"""
