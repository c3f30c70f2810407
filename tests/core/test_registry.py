from __future__ import annotations

import sys
from threading import Barrier, Thread

import pytest

from defserve.core.registry import Registry
from defserve.errors import UsageError


def letters(names: str) -> Registry[str]:
    registry = Registry[str]("letter")
    for name in names:
        registry.add(name, name.upper())
    return registry


def test_items_come_in_order_of_registration() -> None:
    registry = letters("cab")
    assert list(registry) == ["C", "A", "B"]
    assert registry.items() == [("c", "C"), ("a", "A"), ("b", "B")]
    assert len(registry) == 3


def test_items_are_found_by_name() -> None:
    registry = letters("a")
    assert (registry.get("a"), registry.get("z")) == ("A", None)
    assert "a" in registry and "z" not in registry


def test_a_duplicate_is_refused_naming_both_places() -> None:
    registry = Registry[int]("tool")
    registry.add("add", 1, where="calc.py:12")
    with pytest.raises(UsageError) as caught:
        registry.add("add", 2, where="more.py:7")
    assert "tool 'add' is already registered at calc.py:12" in str(caught.value)
    assert str(caught.value).startswith("more.py:7: ") and caught.value.fix
    assert registry.get("add") == 1 and registry.version == 1


def test_a_duplicate_of_unknown_origin_is_refused_without_a_place() -> None:
    registry = letters("a")
    with pytest.raises(UsageError) as caught:
        registry.add("a", "B")
    assert caught.value.problem == "letter 'a' is already registered"


def test_replacing_keeps_the_position() -> None:
    registry = letters("abc")
    registry.add("b", "new", replace=True)
    assert registry.list_after(0, 9) == [(1, "A"), (2, "new"), (3, "C")]


def test_replace_adds_a_name_that_is_new() -> None:
    registry = letters("a")
    registry.add("b", "B", replace=True)
    assert list(registry) == ["A", "B"]


def test_removing_returns_the_item_and_frees_the_name() -> None:
    registry = letters("ab")
    assert registry.remove("a") == "A"
    assert list(registry) == ["B"]
    registry.add("a", "again")
    assert registry.list_after(0, 9) == [(2, "B"), (3, "again")]


def test_removing_an_unknown_name_suggests_close_ones() -> None:
    registry = Registry[int]("tool")
    registry.add("subtract", 1)
    registry.add("add", 2)
    with pytest.raises(UsageError, match="there is no tool 'subtrac'; did you mean 'subtract'?"):
        registry.remove("subtrac")
    with pytest.raises(UsageError, match="registered: 'subtract', 'add'"):
        registry.remove("zzz")
    with pytest.raises(UsageError, match="registered: none"):
        Registry[int]("tool").remove("add")


def test_pages_follow_one_another() -> None:
    registry = letters("abcde")
    assert registry.list_after(0, 2) == [(1, "A"), (2, "B")]
    assert registry.list_after(2, 2) == [(3, "C"), (4, "D")]
    assert registry.list_after(4, 2) == [(5, "E")]
    assert registry.list_after(5, 2) == registry.list_after(0, 0) == registry.list_after(0, -1) == []


def test_a_cursor_outlives_the_item_it_points_at() -> None:
    registry = letters("abcd")
    registry.remove("b")
    registry.remove("c")
    assert registry.list_after(2, 2) == [(4, "D")]


def test_the_version_grows_with_every_change_and_only_then() -> None:
    registry = letters("ab")
    assert registry.version == 2
    registry.remove("a")
    registry.add("b", "B", replace=True)
    assert registry.version == 4
    registry.get("b")
    with pytest.raises(UsageError):
        registry.remove("a")
    assert registry.version == 4


def test_iteration_sees_the_items_of_its_beginning() -> None:
    registry = letters("abc")
    seen: list[str] = []
    for item in registry:
        seen.append(item)
        registry.add(item + "2", item)
        registry.remove(item.lower())
    assert seen == ["A", "B", "C"]


def test_watchers_are_told_after_each_change_until_they_leave() -> None:
    registry = Registry[str]("letter")
    seen: list[int] = []

    def changed() -> None:
        seen.append(len(registry))

    first, second = registry.watch(changed), registry.watch(changed)
    registry.add("a", "A")
    assert seen == [1, 1]
    first()
    first()
    registry.remove("a")
    assert seen == [1, 1, 0]
    second()
    registry.add("b", "B")
    assert seen == [1, 1, 0]


def test_watchers_are_not_told_of_a_refused_change() -> None:
    registry = letters("a")
    seen: list[None] = []
    registry.watch(lambda: seen.append(None))
    with pytest.raises(UsageError):
        registry.add("a", "B")
    assert seen == []


def test_a_watcher_may_change_the_registry() -> None:
    registry = Registry[str]("letter")

    def changed() -> None:
        if "b" not in registry:
            registry.add("b", "B")

    registry.watch(changed)
    registry.add("a", "A")
    assert list(registry) == ["A", "B"]


def test_no_change_is_lost_between_threads() -> None:
    registry = Registry[int]("number")

    def work(offset: int) -> None:
        for number in range(offset, offset + 200):
            registry.add(str(number), number)
            if number % 2:
                registry.remove(str(number))

    threads = [Thread(target=work, args=(offset,)) for offset in (0, 1000, 2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    positions = [position for position, _ in registry.list_after(0, 10_000)]
    assert len(registry) == 400 and registry.version == 1200
    assert positions == sorted(set(positions))


# -- mirrors ---------------------------------------------------------------------------------------------


def prefixed(name: str, item: str) -> tuple[str, str]:
    return f"c{name}", item


def test_a_mirror_follows_every_change() -> None:
    source, target = letters("ab"), letters("x")
    end = source.mirror(target, prefixed)
    source.add("d", "D")
    source.add("a", "A2", replace=True)
    source.remove("b")
    assert target.items() == [("x", "X"), ("ca", "A2"), ("cd", "D")]
    end()
    source.add("e", "E")
    assert target.items() == [("x", "X")]


def test_an_item_that_a_mirror_refuses_changes_nothing_anywhere() -> None:
    source, first, second = letters("a"), letters(""), letters("")
    second.add("cb", "own")
    source.mirror(first, prefixed)
    source.mirror(second, prefixed)
    with pytest.raises(UsageError, match="letter 'cb' is already registered"):
        source.add("b", "B")
    assert (source.items(), first.items()) == ([("a", "A")], [("ca", "A")])
    source.add("d", "D")
    assert first.items() == [("ca", "A"), ("cd", "D")] and second.get("cd") == "D"


def test_a_mirror_that_is_refused_leaves_nothing_behind() -> None:
    source, target = letters("ab"), letters("")
    target.add("cb", "own")
    with pytest.raises(UsageError):
        source.mirror(target, prefixed)
    source.add("d", "D")
    assert target.items() == [("cb", "own")]


def test_what_the_target_makes_of_a_mirrored_name_stays() -> None:
    source, target = letters("ab"), letters("")
    source.mirror(target, prefixed)
    target.remove("ca")
    target.add("cb", "own", replace=True)
    source.add("b", "B2", replace=True)
    assert source.remove("a") == "A" and source.remove("b") == "B2"
    assert target.items() == [("cb", "own")]


def test_a_replaced_item_keeps_its_position_in_a_mirror_and_is_never_missing_there() -> None:
    source, target = letters("ab"), letters("")
    source.mirror(target, prefixed)
    seen: list[list[tuple[int, str]]] = []
    target.watch(lambda: seen.append(target.list_after(0, 9)))
    source.add("a", "A2", replace=True)
    assert seen == [[(1, "A2"), (2, "B")]]


def test_a_touched_item_is_touched_in_every_mirror() -> None:
    source, middle, target = letters("a"), letters(""), letters("")
    source.mirror(middle, prefixed)
    middle.mirror(target, prefixed)
    before = target.version
    source.notify_watchers()
    assert target.version > before


def test_many_threads_may_change_a_source_and_its_mirrors_while_others_read() -> None:
    source, middle, target = letters(""), letters(""), letters("")
    source.mirror(middle, prefixed)
    middle.mirror(target, prefixed)
    registries, start, errors = (source, middle, target), Barrier(9), list[BaseException]()
    running = [True]

    def change(number: int) -> None:
        start.wait()
        registry = registries[number % 3]
        try:
            for count in range(150):
                name = f"{number}-{count}"
                registry.add(name, "one")
                registry.add(name, "two", replace=True)
                if count % 2:
                    registry.remove(name)
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        while running:
            for registry in registries:
                positions = [position for position, _ in registry.list_after(0, 10_000)]
                assert positions == sorted(set(positions))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader, threads = Thread(target=read), [Thread(target=change, args=(number,)) for number in range(9)]
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        running.clear()
        sys.setswitchinterval(switch)
    reader.join()
    assert errors == []
    assert [len(registry) for registry in registries] == [225, 450, 675]
    assert {f"c{name}" for name, _ in source.items()} <= {name for name, _ in middle.items()}
    assert {f"c{name}" for name, _ in middle.items()} <= {name for name, _ in target.items()}


def test_a_registry_shows_its_kind_and_names() -> None:
    assert repr(letters("ab")) == "<Registry of letter: a, b>"
