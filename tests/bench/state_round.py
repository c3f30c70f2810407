"""One round of one section of stores, printed as JSON: `python -P state_round.py SECTION COMMITS`.

`tests.bench` is that of the revision under measurement: the first on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.bench import state_measure
from tests.bench.measure import FULL, Run
from tests.bench.processes import Launch
from tests.bench.results import Results

# The deepest tree of the full run takes longer to grow than all rounds take to measure.
DEPTHS = (10, 1_000)


def main(section: str, commits: int) -> None:
    module: Any = state_measure
    module.DEPTHS = DEPTHS
    results, plan = Results(), FULL._replace(state_rounds=1, commits=commits)
    run = Run([], [], Launch(Path(sys.executable), {}), plan, results, lambda _: None)
    module.STATE[section](run)
    json.dump(
        {
            measure: by_name[module.SUBJECT]["median"]
            for measure, by_name in results.as_json().items()
            if module.SUBJECT in by_name
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
