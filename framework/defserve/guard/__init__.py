"""Judges what comes from outside: commands, URLs, paths and code. `shell.judge(…)` and its like give a Verdict.

A judge looks at text, does no I/O, never raises, and says what would be allowed instead. `arguments` has the parameter
types that put a judge before a function; `paths` can also open what it judged.

May import: nothing else.
"""
