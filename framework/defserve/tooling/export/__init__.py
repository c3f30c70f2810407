"""Documents made of what a server lists: a catalogue, OpenAPI, a line of `mgp.toml`, JSON Schemas.

They are made of JSON alone, so they can be made of any server that answers `tools/list`.
"""
