"""A person in a topic, at a terminal.

`TopicTerminal` shows what happens and carries out typed commands. What other participants wrote is only data here:
the caller's `show` makes it safe to print.

May import: `host.mcpx.participant`, `protocols.mcpx`, `wire.jsonvalue`.
"""
