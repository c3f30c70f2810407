"""`--web`: the inspector for the server that a command is about.

May import: `cli.state.opened`, `cli.target`, `host.link`, `inspector`, `protocols.mcpl.extension`,
`protocols.mgp`, `runner.memory`, `server`, `tooling.devserver`.
"""
