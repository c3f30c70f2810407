"""What a caller's token lets it see and use, and how often.

An item that needs scopes is hidden from callers without them, and refused to them. A server without `auth` loads none
of this.

May import: `auth`, `core`, `wire.messages`.
"""
