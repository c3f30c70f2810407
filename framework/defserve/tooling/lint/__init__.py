"""Problems in the definitions of a server, found before a model runs into them.

A rule is a small function: definitions in, findings out. Rules only read; they never start the server or call a tool.
"""
