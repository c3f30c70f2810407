from __future__ import annotations

import sys

import pytest

from defserve.runner.switch_interval import ROUND, SHORTEST, lowered_switch_interval


@pytest.mark.parametrize(("threads", "seconds"), [(1, 0.005), (32, ROUND / 32), (1_000_000, SHORTEST)])
def test_turns_are_short_enough_for_all_threads_and_never_longer_than_before(threads: int, seconds: float):
    before = sys.getswitchinterval()
    with lowered_switch_interval(threads):
        assert sys.getswitchinterval() == pytest.approx(min(seconds, before), rel=0.01)
    assert sys.getswitchinterval() == pytest.approx(before)
