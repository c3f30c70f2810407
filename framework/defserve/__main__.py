"""`defserve` and `python -m defserve`: the command line, from its first import on."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line and return the exit code. Ctrl-C ends it quietly, also while modules are imported."""
    try:
        if __name__ == "__main__" and not sys.flags.safe_path:
            # `python -m` searches the current folder first, which is an author's.
            from defserve.base.search_path import hide_authors_folder_from_libraries

            hide_authors_folder_from_libraries(os.getcwd())
        from defserve.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
