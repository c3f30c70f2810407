"""One call of a tool: made and followed, saved as code, and held beside the same call in the other era.

The panels show it. A call ends when its verb is cancelled, and no secret is written into code.

May import: `host`, `inspector.inspection`, `inspector.protocol`, `inspector.recording`, `inspector.states`, `wire`.
"""
