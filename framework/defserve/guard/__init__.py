"""Judges what comes from outside: commands, URLs, paths and code. Each `judge(…)`, as in `shell`, gives a Verdict.

A judge looks at text, does no I/O, never raises, and says what would be allowed instead. `argument_types` are parameter
types that are judged before the function runs. `paths` can also open what it judged, and `http_client` fetch it.
"""
