"""The small languages that programs take as an operand: sed scripts, awk programs, jq filters.

Each file has `problem(script)`: why a script is not known to be harmless, or None. A script passes only if all of it is
read by a grammar that has no command which runs, reads or writes files, or shows the environment.

May import: nothing else.
"""
