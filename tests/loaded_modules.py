"""What a test has imported from a folder of its own, which no other test may find."""

from __future__ import annotations

import sys
from pathlib import Path


def forget_modules_below(folder: Path) -> None:
    """Forget the modules whose files are in `folder`, and no others: a library that is imported a second time has two
    classes of each name, and its compiled part knows the first ones."""
    # Threads of other tests may import meanwhile, and a lazy module may import when it is asked for anything.
    for name, module in sys.modules.copy().items():
        if str(getattr(module, "__dict__", {}).get("__file__") or "").startswith(str(folder)):
            sys.modules.pop(name, None)
