"""What the kernel has is asked, not assumed."""

from __future__ import annotations

import pytest

from defserve.sandbox import Layers, confinement


def test_a_layer_is_named_when_it_is_there_and_missed_when_it_is_not() -> None:
    assert Layers(True, 4, True).names == ("rlimits", "landlock", "seccomp")
    assert Layers(True, 4, True).missing == ()
    assert Layers(True, 0, False).names == ("rlimits",)
    assert Layers(True, 0, False).missing == ("landlock", "seccomp")


def test_other_systems_have_limits_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert confinement.probe.__wrapped__().names in ((), ("rlimits",))


def test_a_kernel_that_refuses_the_question_has_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(confinement, "syscall", refuse)
    monkeypatch.setattr(confinement, "syscall", refuse)
    assert confinement.landlock_version() == 0
    assert not confinement.has_seccomp()


def test_a_processor_whose_numbers_we_do_not_know_gets_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "get_processor_name", lambda: "")
    assert not confinement.has_seccomp()
