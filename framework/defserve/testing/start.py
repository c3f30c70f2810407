"""Run as a script, starts pytest in the current folder, as `python -m pytest` does, where its files shadow no library.

It imports nothing of the package: pytest rewrites the assertions of plugins, and cannot if they were imported before.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location


def start(arguments: list[str]) -> int:
    """Run pytest. Returns its exit code."""
    file = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "base", "search_path.py")
    spec = spec_from_file_location("_defserve_search_path", file)
    assert spec is not None and spec.loader is not None
    search_path = module_from_spec(spec)
    spec.loader.exec_module(search_path)
    search_path.add_author_import_folder(os.getcwd())
    for plugin in entry_points(group="pytest11"):
        # Pytest looks for plugins with a finder of its own, which comes before ours.
        if search_path.has_neighbour(plugin.module.partition(".")[0]):
            plugin.load()
    import pytest

    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
