"""Which calls of a program are awaited, by their place in its source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.sandbox.monty_child import AwaitedCalls
from tests.effort import cpu_within
from tests.rows import for_each_row

# Each source with the call that is meant between angle brackets.
DEFERRED = [
    "await ⟨add⟩(1)",
    "x = [await  ⟨add⟩(n) for n in y]",
    "await (⟨add⟩(1))",
    "asyncio.gather(⟨add⟩(1), other)",
    "asyncio.gather(other(2), ⟨add⟩(1))",
    "gather(*[⟨add⟩(n) for n in range(3)])",
    "gather(*(⟨add⟩(n) for n in range(3)), return_exceptions=True)",
    "asyncio.create_task( ⟨add⟩(1) )",
    "asyncio.wait_for(⟨add⟩(1), 3)",
    "gather('a)', \"b)\", '''c)''', ⟨add⟩(1))",
    "gather(1, # a comment )\n ⟨add⟩(1))",
    "gather('''c\\''')''', 'a\\')', ⟨add⟩(1))",
    "x = 'no end\ngather(⟨add⟩(1))",
    "print('ö')\nasyncio.gather(⟨add⟩(1))",
]
DIRECT = [
    "⟨add⟩(1)",
    "x = ⟨add⟩(1) + 2",
    "awaited(⟨add⟩(1))",
    "gather(1), ⟨add⟩(1)",
    "gather(')'); ⟨add⟩(1)",
    "x = 'gather('\n⟨add⟩(1)",
    "# gather(\n⟨add⟩(1)",
    "gathered(⟨add⟩(1))",
    "noawait; ⟨add⟩(1)",
    "))) ⟨add⟩(1)",
]


def marked(text: str) -> tuple[str, int]:
    before, _, rest = text.partition("⟨")
    return before + rest.replace("⟩", ""), len(before.encode())


@for_each_row("text", DEFERRED)
def test_a_call_that_is_awaited_or_gathered_is_deferred(text: str):
    source, start = marked(text)
    assert AwaitedCalls(source).is_deferred(start, "add")


@for_each_row("text", DIRECT)
def test_other_calls_give_their_value(text: str):
    source, start = marked(text)
    assert not AwaitedCalls(source).is_deferred(start, "add")


def test_call_tool_is_always_awaited():
    assert AwaitedCalls("x = call_tool('a', {})").is_deferred(4, "call_tool")


@for_each_row("newline", ["\n", "\r\n", "\r"])
def test_the_line_of_a_position(newline: str):
    source = newline.join(["a = 1", "b = 2", "add(1)"])
    assert [AwaitedCalls(source).find_line(at) for at in (0, source.index("b"), source.index("add"))] == [1, 2, 3]


@given(st.text(), st.integers(0, 300))
def test_any_source_and_any_position_can_be_asked_about(source: str, start: int):
    calls = AwaitedCalls("gather(" + source)
    assert calls.is_deferred(start, "add") in (True, False)
    assert calls.find_line(start) >= 1


@pytest.mark.parametrize("count", [24, 30_000])
@for_each_row("text", ['"""', "'''", "'", '"', 'f"{"""z"""}"\ns = "'])
def test_escapes_in_a_text_without_an_end_are_read_once(text: str, count: int):
    source = "gather(" + text + "\\a" * count
    assert cpu_within(1.0, lambda: AwaitedCalls(source).is_deferred(7, "add"))


@for_each_row("unit", ["gather(", "'''", '"""', "'", '"', "\\", "(", "[{(", "#", "a.", "gather('''", "\"'", '\\"""'])
def test_reading_takes_time_in_proportion_to_the_source(unit: str):
    source = "gather(" + unit * (64 * 1024 // len(unit))
    assert cpu_within(1.0, lambda: AwaitedCalls(source).is_deferred(7, "add"))
