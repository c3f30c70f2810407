from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.inspector.recording import recorder
from defserve.inspector.recording.recorder import Bodies


def test_old_bodies_lie_in_a_file_and_are_read_from_there():
    kept = Bodies(in_memory=100)
    for number in range(50):
        kept.store_body(number, b"%02d" % number * 10)
    assert kept.in_memory <= 100
    assert [kept.get(number) for number in range(50)] == [b"%02d" % number * 10 for number in range(50)]
    kept.close()


def test_the_oldest_are_forgotten_when_two_files_are_full():
    kept = Bodies(in_memory=10, in_file=100)
    for number in range(100):
        kept.store_body(number, b"x" * 10)
    found = [number for number in range(100) if kept.get(number) is not None]
    assert found == list(range(found[0], 100)) and found[0] > 0 and len(found) <= 22
    kept.close()


def test_a_second_body_takes_the_place_of_the_first():
    """A request that was sent again with a new token has two exchanges."""
    kept = Bodies(in_memory=10)
    for number in (1, 1, 2, 3, 2):
        kept.store_body(number, b"%d" % number * 4)
    assert (kept.in_memory, kept.get(1), kept.get(2), kept.get(3)) == (8, b"1111", b"2222", b"3333")
    kept.drop_body(2)
    kept.store_body(4, b"4444")
    kept.store_body(5, b"5555")
    assert (kept.in_memory, kept.get(2)) == (8, None)
    kept.close()


def test_a_body_is_cut_where_it_is_too_long(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_KEPT_BODY_BYTES", 10)
    kept = Bodies()
    kept.store_body(0, b"x" * 100)
    assert kept.get(0) == b"x" * 10


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(0, 100))
def test_a_body_comes_back_as_it_was_or_not_at_all(every: list[bytes], forgotten: int):
    kept = Bodies(in_memory=50, in_file=120)
    for number, body in enumerate(every):
        kept.store_body(number, body)
    kept.drop_body(forgotten)
    assert kept.get(forgotten) is None
    for number, body in enumerate(every):
        assert number == forgotten or kept.get(number) in (body, None)
    if every and forgotten != len(every) - 1:
        assert kept.get(len(every) - 1) == every[-1]
    kept.close()
    assert kept.in_memory == 0
