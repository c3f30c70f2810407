"""The subcommands: functions that take `argv` and return the exit code. `cli.COMMANDS` names the function of each.

A command is imported only when it is used, so its imports may be heavy. Commands share a module if they import the
same things. `run` and `dev` import little, because their start-up counts.
"""
