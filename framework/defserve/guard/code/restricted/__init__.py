"""Layer 2 of judging code: how strict and readonly code is compiled and what it may touch when it runs.

RestrictedPython is a compiler policy, not a sandbox: run the result in the jail. The room is light: the jailed
child imports it before it confines itself.

May import: `guard.code.imports`, `guard.code.levels`, `guard.code.names`.
"""
