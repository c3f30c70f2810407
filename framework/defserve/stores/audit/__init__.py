"""An audit log in a file: records in a chain that shows every later change, and a signed head that shows a cut end.

An event that was acknowledged as durable is on the disk. Events that cannot be written wait, in order. If there are too
many of them, the log itself says how many were lost.

May import: `stores.files`, `stores.formats`.
"""
