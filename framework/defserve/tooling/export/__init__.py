"""Documents about a server, made from what it lists: a catalogue, JSON Schemas, an entry of `mgp.toml`.

They are made from JSON alone, so they work for any server that answers `tools/list`.

May import: `host.clients.server_names`, `serving.openapi`.
"""
