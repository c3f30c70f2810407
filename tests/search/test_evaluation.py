"""What each strategy finds on the queries that rankers are fitted on: a ranker that gets worse fails here."""

from __future__ import annotations

import pytest

from tests.search.evaluation import KINDS, Score, evaluated, queries, rankers

ANSWERABLE = tuple(kind for kind in KINDS if kind != "none")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, Score]]:
    asked = queries("all")[::2]  # half of them, to be quick
    found = {name: evaluated(rank, asked) for name, rank in rankers().items()}
    if "hybrid" not in found:
        pytest.skip("needs the extra [semantic]")
    return found


def test_keywords_and_sentences_find_their_tool_among_the_first_five(scores: dict[str, dict[str, Score]]):
    assert scores["hybrid"]["keyword"].among_five >= 0.97
    assert scores["hybrid"]["sentence"].among_five >= 0.87


def test_paraphrases_are_found_five_times_as_often_as_by_bm25(scores: dict[str, dict[str, Score]]):
    found = {name: kinds["paraphrase"].among_five for name, kinds in scores.items()}
    assert found["hybrid"] >= 0.7
    assert found["hybrid"] >= 5 * max(found["FTS5"], found["keyword"])


@pytest.mark.parametrize("kind", ANSWERABLE)
def test_hybrid_is_never_far_below_the_better_single_strategy(scores: dict[str, dict[str, Score]], kind: str):
    better = max(scores["keyword"][kind].among_five, scores["semantic"][kind].among_five)
    assert scores["hybrid"][kind].among_five >= better - 0.02


def test_most_queries_that_nothing_serves_are_told_apart(scores: dict[str, dict[str, Score]]):
    assert scores["hybrid"]["none"].among_five >= 0.5
