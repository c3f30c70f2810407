"""Layer 2 of judging code: how strict and readonly code is compiled and what it may touch when it runs.

RestrictedPython is a compiler policy, not a sandbox: run the result in the jail. The jailed child imports these files
before it confines itself, so they import little.

May import: `guard.code.imports`, `guard.code.levels`, `guard.code.names`.
"""
