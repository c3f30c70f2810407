"""An audit log in a file: records in a chain that shows every later change, and a signed head that shows a cut end.
Anchors keep the head elsewhere, so that a log that is gone or put back shows, too.

An event that was acknowledged as durable is on the disk. Events that cannot be written wait, in order. If there are too
many of them, the log itself says how many were lost.
"""
