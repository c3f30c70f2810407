"""The subcommands: each module has a `main(argv)` that returns the exit code. A room for each thing that people do.

`author` writes servers, `serve` runs them, `use` talks to them, `operate` looks after them. A command is imported only
when it is used, so its imports may be heavy. `run` is the exception: its start-up counts.

May import: `cli`.
"""
