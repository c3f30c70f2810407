"""The guides are in plain English: `python -m tests.readability` lists them."""

from __future__ import annotations

from statistics import median

from tests.readability import ease, prose, scores, syllables
from tests.rows import for_each_row

PAGE = """# A heading of quite extraordinary complexity

Short words. They `do_not(count)` here: see [the page](other.md#part)! Is
that all?

- One item
- another item

| a table | is not prose |
|---|---|

```python
neither = "is code"
```
"""


def test_only_prose_is_measured() -> None:
    assert prose(PAGE) == [
        "Short words.",
        "They here: see the page!",
        "Is that all?",
        "- One item",
        "- another item",
    ]


@for_each_row(
    ("word", "count"),
    [
        ("a", 1),
        ("code", 1),
        ("asked", 1),
        ("tables", 2),
        ("wanted", 2),
        ("closes", 2),
        ("client", 2),
        ("permission", 3),
        ("HTTP", 4),
    ],
)
def test_syllables_are_counted(word: str, count: int) -> None:
    assert syllables(word) == count


def test_short_sentences_of_short_words_are_easier() -> None:
    assert ease(["The cat sat on the mat."]) > 100
    assert ease(["Notwithstanding considerable organisational complexity, interoperability remains achievable."]) < 0


def test_the_guides_are_easy_to_read() -> None:
    found = scores()
    assert median(found.values()) >= 60
    assert {page: round(score) for page, score in found.items() if score < 45} == {}
