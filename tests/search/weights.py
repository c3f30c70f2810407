"""Fits the weights of hybrid search, and says what they find for servers that they were not fitted on.

`python -m tests.search.weights`: for each server, the weights are fitted on the queries for all other servers, and
judged on those for this one. Few numbers are fitted (`Weights`), on all queries that there are. The words, phrases and
verbs are not fitted: those who wrote them knew some of the queries.
"""

from __future__ import annotations

from typing import Any

import numpy

from defserve.search.ranking import WEIGHTS, ToolIndex, Weights, without_data
from defserve.search.scores import PackagedEmbedder, ToolVectors, weigh_stems
from tests.search.evaluation import SPLITS, TOP, Query, entries, queries

STEPS, RATE, HOLD = 400, 0.02, 0.002
KINDS = ("keyword", "sentence", "paraphrase")


def measured(index: ToolIndex, query: str) -> Any:
    """A row for each tool, a column for each weight."""
    signals = index.compute_signals(query, index._by_meaning(without_data(query)))  # pyright: ignore[reportPrivateUsage]
    none = [0.0] * len(index.entries)
    rows = numpy.array([signals.get(name, none) for name in Weights._fields]).T
    return rows * numpy.array(index.compute_action_factors(query))[:, None]


def fitted(rows: Any, right: Any) -> Any:
    """The weights that make a right tool the most probable (softmax, Adam), not far from where they are."""
    start = numpy.array(WEIGHTS)
    scale = 4.0 * start
    weights, mean, square = scale.copy(), numpy.zeros(len(start)), numpy.zeros(len(start))
    for step in range(1, STEPS + 1):
        scores = rows @ weights
        shares = numpy.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        wanted = shares * right / ((shares * right).sum(1, keepdims=True) + 1e-12)
        slope = numpy.einsum("qt,qtw->w", shares - wanted, rows) / len(rows) + HOLD * (weights - scale)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        move = (mean / (1 - 0.9**step)) / (numpy.sqrt(square / (1 - 0.99**step)) + 1e-9)
        weights = weights - 4 * RATE * move
    return weights / weights[0]


def found(rows: Any, right: Any, weights: Any) -> Any:
    """For each query whether a right tool is among the first; of equals the wrong ones count."""
    scores = rows @ weights
    best = numpy.where(right > 0, scores, -numpy.inf).max(1, keepdims=True)
    return ((scores >= best - 1e-9) & (right == 0)).sum(1) < TOP


def servers_of(query: Query) -> set[str]:
    return {tool.split("/")[0] for tool in query.right}


def main() -> None:
    vectors = ToolVectors(PackagedEmbedder)
    if not vectors.wait_until_loaded(60):
        raise SystemExit(vectors.failed)
    index = ToolIndex(entries(), weigh_stems, vectors)
    asked = [(split, each) for split in SPLITS for each in queries(split) if each.kind in KINDS]
    rows = numpy.stack([measured(index, each.query) for _, each in asked])
    right = numpy.array([[entry.tool_id in each.right for entry in entries()] for _, each in asked], dtype=float)
    hits = numpy.zeros(len(asked), dtype=bool)
    for server in sorted({entry.server_id for entry in entries()}):
        its = numpy.array([server in servers_of(each) for _, each in asked])
        if its.any():
            hits[its] = found(rows[its], right[its], fitted(rows[~its], right[~its]))
    print("top 5, weights fitted without the server that is asked for:\n")
    print("| queries | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
    for split in (*SPLITS, "all"):
        of = [[hits[at] for at, (s, q) in enumerate(asked) if split in (s, "all") and q.kind == k] for k in KINDS]
        print(f"| {split} | " + " | ".join(f"{sum(each) / len(each):.1%} ({len(each)})" for each in of if each) + " |")
    print("\nfitted on all:", Weights(*(round(float(each), 2) for each in fitted(rows, right))))


if __name__ == "__main__":
    main()
