"""Shapes: what is written is read as it was, what is wrong is named, and a lenient member never breaks a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.core.shapes import (
    ANY_VALUE,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    TEXT_LIST,
    MemberKind,
    WireShape,
    bounded_list_of,
    bounded_text,
    distinct_list_of,
    list_of,
    list_of_texts,
    make_checked_kind,
    nested_shape,
    one_of,
    read_member,
    restrict_kind,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams
from tests.rows import for_each_row


@wire_shape
class Author(WireShape):
    name: str = wire_member("name", TEXT)
    age: int | None = wire_member("age", INTEGER, default=None)


@wire_shape(kw_only=True)
class Book(WireShape):
    id: str = wire_member("bookId", bounded_text(9))
    title: str = wire_member("title", TEXT, default="", omit=False)
    authors: tuple[Author, ...] = wire_member("authors", list_of(nested_shape(Author)), default=())
    state: str = wire_member("state", one_of("new", "lent"), default="new")
    price: float | None = wire_member("price", NUMBER, default=None, lenient=True)
    tags: tuple[str, ...] = wire_member("tags", TEXT_LIST, default=(), lenient=True)
    is_old: bool = wire_member("isOld", BOOLEAN, default=False)
    extra: Mapping[str, Any] = wire_member("extra", OBJECT, default_factory=dict)
    note: Any = wire_member("note", ANY_VALUE, default=None)
    shelf: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


def test_a_shape_writes_its_members_in_order_and_leaves_out_defaults():
    book = Book(id="b1", state="lent", authors=(Author("Ada"), Author("Bo", 3)))
    assert list(book.to_wire().items()) == [
        ("bookId", "b1"),
        ("title", ""),
        ("authors", [{"name": "Ada"}, {"name": "Bo", "age": 3}]),
        ("state", "lent"),
    ]


def test_a_field_that_is_no_member_is_for_the_program_alone():
    wire = {"bookId": "b1", "shelf": "theirs", "unknown": 1}
    book = Book.from_wire(wire, shelf="ours")
    assert book.shelf == "ours" and book.raw is wire and "shelf" not in book.to_wire()


books = st.builds(
    Book,
    id=st.text(max_size=9),
    title=st.text(),
    authors=st.lists(st.builds(Author, name=st.text(), age=st.none() | st.integers())).map(tuple),
    state=st.sampled_from(["new", "lent"]),
    price=st.none() | st.floats(allow_nan=False),
    tags=st.lists(st.text()).map(tuple),
    is_old=st.booleans(),
    extra=st.dictionaries(st.text(), st.integers()),
    note=st.none() | st.integers() | st.text(),
)


@given(books)
def test_what_is_written_is_read_as_it_was(book: Book):
    assert Book.from_wire(book.to_wire()) == book


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("bookId", "title", "authors", "state", "price", "tags", "isOld", "extra", "note")


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_whatever_a_peer_sends_is_read_or_refused_by_name(wire: dict[str, Any]):
    try:
        Book.from_wire(wire)
    except InvalidParams as error:
        assert any(name in str(error) for name in (*NAMES, "name", "age"))


@for_each_row(
    "wrong, problem",
    [
        ({"bookId": None}, "bookId must be a string"),
        ({"bookId": 7}, "bookId must be a string"),
        ({"bookId": "b" * 10}, "bookId must have at most 9 characters"),
        ({"state": "sold"}, "state must be one of new, lent"),
        ({"isOld": 1}, "isOld must be true or false"),
        ({"extra": []}, "extra must be an object"),
        ({"authors": {}}, "authors must be a list"),
        ({"authors": [{"name": 1}]}, "name must be a string"),
    ],
)
def test_a_wrong_member_is_named(wrong: dict[str, Any], problem: str):
    with pytest.raises(InvalidParams, match=f"Invalid params: {problem}"):
        Book.from_wire({"bookId": "b1", **wrong})


def test_a_lenient_member_of_another_kind_has_its_default():
    book = Book.from_wire({"bookId": "b1", "price": "free", "tags": "red"})
    assert book.price is None and book.tags == ()


def test_items_of_another_kind_are_left_out_of_a_list():
    assert Book.from_wire({"bookId": "b1", "tags": ["a", 1, None, "b"]}).tags == ("a", "b")


def test_a_boolean_is_no_number():
    with pytest.raises(InvalidParams, match="age must be an integer"):
        Author.from_wire({"name": "Ada", "age": True})


# -- one member


COPIES = make_checked_kind("1 to 9", lambda value: type(value) is int and 1 <= value <= 9)
WORDS = distinct_list_of(bounded_list_of(restrict_kind(TEXT, bool, "must not be empty"), 3))


@for_each_row(
    "wire, kind, problem",
    [
        ({}, COPIES, "member must be 1 to 9"),
        ({"member": 10}, COPIES, "member must be 1 to 9"),
        ({"member": "a"}, list_of_texts("a list of names"), "member must be a list of names"),
        ({"member": ["a", 1]}, list_of_texts("a list of names"), "member must be a list of names"),
        ({"member": []}, restrict_kind(list_of_texts("a list of names"), bool), "member must be a list of names"),
        ({"member": ["a"] * 4}, WORDS, "member must be a list of at most 3 texts"),
        ({"member": ["a", ""]}, WORDS, "member must not be empty"),
        ({"member": ["a", 1]}, WORDS, "member must be a string"),
    ],
)
def test_a_member_by_itself_is_refused_by_its_name(wire: dict[str, Any], kind: MemberKind[Any], problem: str):
    with pytest.raises(InvalidParams, match=f"Invalid params: {problem}"):
        read_member(wire, "member", kind)


def test_a_member_is_refused_by_its_label():
    with pytest.raises(InvalidParams, match=r"Invalid params: filter\.copies must be 1 to 9"):
        read_member({"copies": 0}, "copies", COPIES, label="filter.copies")


def test_a_missing_member_has_the_default_and_null_only_if_it_may():
    assert read_member({}, "copies", COPIES, 1, nullable=False) == 1
    assert read_member({"copies": None}, "copies", COPIES, 1) == 1
    with pytest.raises(InvalidParams):
        read_member({"copies": None}, "copies", COPIES, 1, nullable=False)
    assert read_member({"copies": "many"}, "copies", COPIES, 1, lenient=True) == 1


def test_a_distinct_list_has_each_item_once():
    assert read_member({"words": ["b", "a", "b"]}, "words", WORDS) == ("b", "a")


# -- several members


@wire_shape
class Loan(Author):
    months: int = wire_member("months", INTEGER, default=1)

    def check_members(self) -> None:
        if self.age is None and self.months > 1:
            raise InvalidParams("Invalid params: a longer loan needs an age")


def test_what_members_must_fulfil_together_is_checked_when_they_are_read():
    assert Loan.from_wire({"name": "Ada", "age": 9, "months": 2}).months == 2
    with pytest.raises(InvalidParams, match="a longer loan needs an age"):
        Loan.from_wire({"name": "Ada", "months": 2})


def test_a_shape_extends_another():
    assert Loan.extend(Author("Ada", 9), months=2) == Loan("Ada", 9, 2)
