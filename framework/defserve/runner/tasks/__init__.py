"""Tasks that take their first step at once.

`FirstSteps` is the only entrance. Work that never waits costs no task and no turn of the loop. Other work cannot tell
that it did not begin in a task of its own.

May import: `core.stepping`.
"""
