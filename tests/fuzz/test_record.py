"""The figures of all runs of the fuzzer, added up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz.record import Record, Slice, Total, least
from tests.fuzz.slices import follow, read_code

SAID = """\
INFO: Seed: 7
#21	INITED cov: 87 ft: 257 corp: 13/4243b exec/s: 0 rss: 48Mb
#40	NEW    cov: 87 ft: 258 corp: 14/4249b lim: 449 exec/s: 0 rss: 48Mb
#90	REDUCE cov: 91 ft: 258 corp: 14/4240b lim: 449 exec/s: 0 rss: 48Mb
#128	pulse  cov: 91 ft: 258 corp: 14/4240b lim: 449 exec/s: 0 rss: 48Mb
#200	DONE   cov: 91 ft: 259 corp: 14/4550b lim: 449 exec/s: 0 rss: 48Mb
Done 200 runs in 0 second(s)
"""


def test_what_the_fuzzer_says_is_read():
    clock = iter(range(1, 99))
    run, is_done, tail = follow(SAID.splitlines(), 7, lambda: float(next(clock)))
    assert run == Slice(7, runs=200, growth=[(1.0, 87), (2.0, 91)])
    assert is_done and tail == ["INFO: Seed: 7"]


def test_runs_are_added_up():
    total = Total().plus(Slice(7, 100.0, 1000, [(5.0, 50), (40.0, 60)]))
    assert (total.seconds, total.runs, total.coverage, total.grew_at) == (100.0, 1000, 60, 40.0)
    total = total.plus(Slice(8, 50.0, 400, [(1.0, 55), (2.0, 60)]))
    assert (total.coverage, total.grew_at) == (60, 40.0), "what was reached before is not new"
    assert total.is_settled
    total = total.plus(Slice(9, 50.0, 400, [(1.0, 55), (20.0, 61), (30.0, 62)], ["crash-a"]))
    assert total == Total(200.0, 1800, 62, 180.0, ["crash-a"], [7, 8, 9]) and not total.is_settled


def test_a_record_is_kept_in_its_file(tmp_path: Path):
    file = tmp_path / "new" / "record.json"
    assert Record(file).of("codec") == Total()
    Record(file).add("codec", Slice(7, 100.0, 1000, [(5.0, 50)]))
    Record(file).add("sse", Slice(7, 1.0))
    Record(file).add("codec", Slice(8, 20.0, 1))
    assert Record(file).of("codec") == Total(120.0, 1001, 50, 5.0, [], [7, 8])
    assert list(Record(file).figures(["sse", "paths", "codec"])) == ["sse", "codec"]
    Record(file).forget(["codec", "paths"])
    assert list(Record(file).totals()) == ["sse"] and [*file.parent.iterdir()] == [file]


def test_a_new_record_begins_with_the_figures_that_were_published(tmp_path: Path):
    published = tmp_path / "fuzz.json"
    published.write_text(json.dumps({"targets": {"codec": asdict(Total(60.0, 10, 50, 5.0, [], [7]))}}))
    record = Record(tmp_path / "record.json", published)
    assert record.add("codec", Slice(8, 20.0, 1)) == Total(80.0, 11, 50, 5.0, [], [7, 8])
    record.forget(["codec"])
    assert record.of("codec") == Total()


def test_runs_of_code_that_has_changed_are_forgotten(tmp_path: Path):
    record = Record(tmp_path / "record.json")
    assert record.begin({"codec": "a", "sse": "b"}) == ["codec", "sse"]
    record.add("codec", Slice(7, 100.0))
    record.add("sse", Slice(8, 50.0))
    assert record.begin({"codec": "a", "sse": "changed"}) == ["sse"]
    assert {name: total.seconds for name, total in record.totals().items()} == {"codec": 100.0, "sse": 0.0}


def test_the_code_of_a_target_is_what_it_imports():
    assert read_code("codec") == read_code("codec") != read_code("shell")


def test_the_target_that_has_had_the_least_comes_next():
    totals = {"a": Total(seconds=60.0), "b": Total(seconds=30.0), "c": Total(seconds=90.0)}
    assert least(totals, ["a", "b", "c", "new"], 90) == "new"
    assert least(totals, ["a", "b", "c"], 90) == "b"
    assert least(totals, ["a", "c"], 90) == "a"
    assert least(totals, ["c"], 90) is None


def test_a_target_that_found_something_new_in_its_last_quarter_is_run_for_longer():
    totals = {"late": Total(seconds=100.0, grew_at=76.0), "early": Total(seconds=100.0, grew_at=75.0)}
    assert least(totals, totals, 90) == "late"
    assert least({"late": Total(seconds=102.0, grew_at=76.0)}, ["late"], 90) is None


@pytest.mark.parametrize("jobs", [1, 2])
def test_until_goes_on_until_each_target_has_had_its_time(tmp_path: Path, jobs: int):
    record, ran = Record(tmp_path / "record.json"), list[tuple[str, int]]()
    record.add("codec", Slice(1, 200.0))
    options = command._parser().parse_args(["--until", "4"])  # pyright: ignore[reportPrivateUsage]
    choose, seconds = command._plan(options, ["codec", "sse", "paths"], record)  # pyright: ignore[reportPrivateUsage]

    def fuzz(name: str, seed: int) -> Slice:
        ran.append((name, seed))
        return Slice(seed, seconds, found=["crash"] if name == "paths" else [])

    assert command.run(record, choose, fuzz, 1, jobs) == 1
    assert sorted(ran) == [("codec", 2), ("paths", 1), ("sse", 1), ("sse", 2)], "one that crashed is not run again"
    assert {name: total.seconds for name, total in record.totals().items()} == {"codec": 320, "sse": 240, "paths": 120}
