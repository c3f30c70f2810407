"""Run by the tests as a process of its own: `examples/notes.py` that keeps few checkpoints, so that it often prunes."""

from __future__ import annotations

from defserve.stores.checkpoints.checkpoint_tree import Retention
from examples.notes import notebooks, server

KEEP = 30

if __name__ == "__main__":
    notebooks.retention = Retention(KEEP)
    server.main()
