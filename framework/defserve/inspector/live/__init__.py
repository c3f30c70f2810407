"""What a server does on its own, by MCPL: events that it pushes, messages of channels, scopes that it asks for, hooks.

Our side answers as the person at the page says. All that is kept is bounded.

May import: `host.mcpl`, `inspector.protocol`, `protocols.mcpl`.
"""
