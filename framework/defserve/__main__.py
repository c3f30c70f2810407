"""`python -m defserve` is the command `defserve`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` searches the current folder first, which is an author's.
        from defserve.base.search_path import hide_authors_folder_from_libraries

        hide_authors_folder_from_libraries(os.getcwd())
    from defserve.cli import main

    sys.exit(main())
