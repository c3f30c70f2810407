"""Answers to the questions of a server: prepared on the command line, or typed at the terminal.

Questions go to stderr. If nobody can answer, the server is told that it cannot ask.

May import: `cli.screen`, `host`, `protocols.mgp.confirmation`.
"""
