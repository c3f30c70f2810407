"""Security of tool calls (MGP §4, §8): what a tool declares, which validators apply, when the person is asked.

Missing or invalid declarations make the host more careful.

May import: `host.answers`, `host.fields`, `host.person`, `protocols.mgp`, `wire`.
"""
