"""The settings files of MCP clients: where they are, what they want in them, and how to change nothing else there."""
