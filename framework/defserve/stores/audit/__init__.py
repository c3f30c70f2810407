"""An audit log in a file: records in a chain that shows every later change, and a signed head that shows a cut end.

An event that was acknowledged as durable is on the disk. What cannot be written waits, in order, or is counted as lost
in the log itself.

May import: `stores.files`, `stores.formats`.
"""
