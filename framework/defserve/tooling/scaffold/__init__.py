"""Projects: made new from the template, and added to. Reads and writes files; imports no server."""
