"""`python -m tests.api` writes the snapshot of the public surface anew."""

from tests.api.surface import SNAPSHOT, surface

SNAPSHOT.write_text(surface(), encoding="utf-8")
