"""Finding a tool among many: an index, rankers, and a budget for the tools that a model is shown.

Nothing here knows a protocol, a session or an event loop. Queries are cut and tables are bounded, whatever peers send.
An index holds only what its caller may see, so neither results nor scores tell of anything else.
"""
