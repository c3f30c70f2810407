"""`--web`: the inspector for the server that a command is about.

May import: `cli.target`, `host.link`, `inspector`, `runner.memory`, `tooling.devserver`.
"""
