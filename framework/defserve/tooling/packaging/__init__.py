"""What is published of a project: wheel and sdist, `server.json`, an MCPB bundle, `tools.json`, and their agreement."""
