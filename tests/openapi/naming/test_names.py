"""Names of tools and arguments."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.openapi.operations import Operation, make_argument_name, make_preferred_name, name_operations
from tests.effort import cpu_within
from tests.openapi.rules import ARGUMENT, NAME
from tests.rows import for_each_row


def one(method: str, path: str, id: str | None, *tags: str) -> Operation:
    return Operation(method, path, id, "", "", tags, False, (), None, {})


@for_each_row(
    "method path id name",
    [
        ("post", "/navigate", "navigate_post_navigate_post", "navigate_post"),
        ("post", "/navigate", "navigate_navigate_post", "navigate"),
        ("get", "/items/{item_id}", "read_item_items__item_id__get", "read_item"),
        ("get", "/repos", "issues/list-for-repo", "issues_list_for_repo"),
        ("get", "/users", "UsersController_findAll", "users_find_all"),
        ("get", "/x", "getHTTPStatus", "get_http_status"),
        ("get", "/x", "conversations.list", "conversations_list"),
        ("get", "/x", "list list list", "list"),
        ("get", "/x", "Größe_ändern", "groe_andern"),
        ("get", "/api/v1/users/{id}", None, "get_users_by_id"),
        ("get", "/users/{id}/posts", None, "get_users_posts"),
        ("delete", "/v2/a-b/{x}.json", "", "delete_a_b"),
        ("get", "/", None, "get"),
        ("get", "/漢字", "漢字", "get"),
    ],
)
def test_a_name_says_what_the_operation_does(method: str, path: str, id: str | None, name: str) -> None:
    assert make_preferred_name(one(method, path, id)) == name


def test_operations_of_one_name_are_told_apart_by_what_differs() -> None:
    same = [
        one("get", "/pets", "list", "pets"),
        one("get", "/users", "list", "users"),
        one("post", "/users", "list"),
        one("get", "/things/{id}", "list"),
        one("get", "/things/{id}", "list"),
        one("get", "/alone", "alone"),
    ]
    assert name_operations(same) == ["list", "users_list", "post_list", "get_list", "get_things_by_id", "alone"]


@for_each_row("said", ["get", "post", "delete"])
def test_one_function_for_several_methods_has_a_name_for_each(said: str) -> None:
    same = [one(method, "/jobs/{id}", f"jobs_jobs__id__{said}", "work") for method in ("get", "post", "delete")]
    assert name_operations(same) == ["get_jobs", "post_jobs", "delete_jobs"]


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    name = make_preferred_name(
        one("get", "/x", "actionsListSelectedRepositoriesEnabledForTheGithubActionsOfAnOrganizationInEnterprise")
    )
    assert len(name) <= 64 and name.startswith("actions_list_selected") and name.endswith("enterprise")


ids = st.one_of(st.none(), st.text(max_size=90), st.from_regex(r"[a-zA-Z_/{}.-]{1,90}", fullmatch=True))


@given(st.lists(st.tuples(st.sampled_from(["get", "post", "delete"]), st.text(max_size=30), ids), max_size=25))
def test_any_operations_get_names_that_are_short_and_different(given_operations: list[Any]) -> None:
    names = name_operations([one(method, f"/{path}", id) for method, path, id in given_operations])
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) and len(name) <= 64 for name in names)


@given(st.lists(st.text(min_size=1, max_size=80), max_size=12))
def test_any_parameters_get_names_that_model_apis_take(names: list[str]) -> None:
    taken: set[str] = set()
    for name in names:
        made = make_argument_name(name, "query", taken)
        assert ARGUMENT.fullmatch(made) and made not in taken
        taken.add(made)


def test_many_operations_without_a_name_of_their_own_are_numbered_at_once() -> None:
    same = [one("get", f"/{chr(0x4E00 + number)}", None) for number in range(2_500)]
    assert name_operations(same)[:3] == ["get", "get_2", "get_3"]
    assert cpu_within(1.5, lambda: name_operations(same))
