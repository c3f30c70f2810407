"""Answers to the questions of a server: prepared on the command line, or typed at the terminal.

Questions go to stderr. If nobody can be asked, the server is not offered to ask.

May import: `host`.
"""
