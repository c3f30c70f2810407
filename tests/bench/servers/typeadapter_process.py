"""The yardstick of a scalar-only start: a process that imports pydantic's TypeAdapter, builds one, and is done."""

from pydantic import TypeAdapter

TypeAdapter(int)
