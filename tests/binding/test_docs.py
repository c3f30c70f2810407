"""Docstrings in four styles say the same."""

from __future__ import annotations

from defserve.binding.signature import ParsedDocstring
from tests.rows import for_each_row

GOOGLE = """Find notes.

    Searches the titles.

    Args:
        query: What to look for,
            in any case.
        limit (int): How many.

    Returns:
        The notes.

    Raises:
        ValueError: never

    Examples:
        find("x")
    """

NUMPY = """Find notes.

    Searches the titles.

    Parameters
    ----------
    query : str
        What to look for,
        in any case.
    limit : int, optional
        How many.

    Returns
    -------
    list
        The notes.

    Examples
    --------
    find("x")
    """

REST = """Find notes.

    Searches the titles.

    :param query: What to look for,
        in any case.
    :param int limit: How many.
    :returns: The notes.
    :raises ValueError: never
    """

EPYDOC = """Find notes.

    Searches the titles.

    @param query: What to look for,
        in any case.
    @param limit: How many.
    @return: The notes.
    """

STYLES = {"google": GOOGLE, "numpy": NUMPY, "rest": REST, "epydoc": EPYDOC}


@for_each_row("text", STYLES.values(), ids=STYLES)
def test_each_parameter_has_its_text(text: str) -> None:
    docs = ParsedDocstring(text)
    assert docs.parameter("query") == "What to look for, in any case."
    assert docs.parameter("limit") == "How many."
    assert docs.parameter("other") is None


@for_each_row("text", STYLES.values(), ids=STYLES)
def test_the_description_has_no_sections_on_parameters_and_results(text: str) -> None:
    description = ParsedDocstring(text).description
    assert description is not None and description.startswith("Find notes.\n\nSearches the titles.")
    for word in ("query", "limit", "The notes", "never", "Returns", "Parameters", ":param", "@param"):
        assert word not in description


@for_each_row("text", [GOOGLE, NUMPY])
def test_examples_stay_in_the_description(text: str) -> None:
    assert 'find("x")' in (ParsedDocstring(text).description or "")


def test_text_after_a_section_stays() -> None:
    assert ParsedDocstring("Do.\n\nArgs:\n    a: one\n\nMind the gap.\n").description == "Do.\n\nMind the gap."


@for_each_row("text", [None, "", "   \n  "])
def test_no_docstring_is_no_description(text: str | None) -> None:
    assert ParsedDocstring(text).description is None
    assert ParsedDocstring(text).parameter("a") is None
