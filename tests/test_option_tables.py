"""Every option that a table of the docs names, the code takes; the table of permissions is the code's own."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, is_typeddict

from defserve import Command, Context, Server, Shell
from defserve.client import Answers, Client, Mgp
from defserve.code_mode.run import CodeMode
from defserve.extending import Argument, Transform
from defserve.openapi.api import ImportFields
from defserve.protocols.mcp.events.draft import EventSettings
from defserve.protocols.mcp.events.event_types import EventTypeOptions
from defserve.protocols.mcp.resources import ResourceOptions
from defserve.protocols.mcp.tools import ToolOptions
from defserve.protocols.mcpl.feature_sets import EventOptions, FeatureSet, InferenceOptions
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS
from defserve.search import Search
from defserve.server.options import AppFields, FeatureSetFields, MountFields, StateFields
from tests.rows import for_each_row

DOCS = Path(__file__).parents[1] / "docs"

# Page and heading of a table's first column -> what takes the options in that column.
TABLES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("apps", "Option of `@server.app`"): (AppFields,),
    ("client", "Option of `Client`"): (Client,),
    ("client", "`Answers(…)`"): (Answers,),
    ("code-mode", "Option"): (CodeMode,),
    ("mounting", "Option of `mount`"): (Server.mount, MountFields),
    ("mounting", "Option of `Command(…)`"): (Command,),
    ("inference", "Option of `infer`"): (FeatureSet.infer, InferenceOptions),
    ("hooks", "Option of `feature_set`"): (FeatureSetFields,),
    ("mcp-events", "Option of `@server.event`"): (EventTypeOptions,),
    ("mcp-events", "`EventSettings(…)`"): (EventSettings,),
    ("openapi", "Option"): (ImportFields,),
    ("permissions", "`Mgp(…)`"): (Mgp,),
    ("push-events", "Option of `push`"): (FeatureSet.push, EventOptions),
    ("resources-and-prompts", "Option"): (ResourceOptions,),
    ("search", "`Search(…)`"): (Search,),
    ("security", "`Shell(…)`"): (Shell,),
    ("state", "`server.state(Model, …)`, `set.state(Model, …)`"): (FeatureSet.state, StateFields),
    ("background-tasks", "Option"): (ToolOptions,),
    ("tools", "Option"): (ToolOptions,),
    ("transforms", "`Transform(…)`"): (Transform,),
    ("transforms", "`Argument(…)`"): (Argument,),
}


def options_in(page: str, heading: str) -> set[str]:
    """The names in the first column of a table."""
    table = rf"^\| {re.escape(heading)} \|[^\n]*\n\|[-:| ]+\n((?:\|[^\n]*\n)+)"
    (rows,) = re.findall(table, (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE)
    return {name for cell in re.findall(r"^\|([^|]*)", rows, re.MULTILINE) for name in re.findall(r"`(\w+)", cell)}


def taken(by: Any) -> set[str]:
    """The names of the options that a function, a class or a TypedDict takes."""
    return set(by.__annotations__ if is_typeddict(by) else inspect.signature(by).parameters)


@for_each_row(("table", "by"), TABLES.items())
def test_every_option_of_a_table_exists(table: tuple[str, str], by: tuple[Any, ...]) -> None:
    named = options_in(*table)
    assert named
    assert named - set[str]().union(*map(taken, by)) == set()


def test_every_permission_is_in_the_table_with_its_risk() -> None:
    text = (DOCS / "permissions.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (safe|moderate|dangerous) \|", text, re.MULTILINE)
    assert dict(rows) == PERMISSION_RISKS


def test_everything_that_a_context_has_is_in_the_table() -> None:
    text = (DOCS / "context-and-dependencies.md").read_text("utf-8")
    cells = re.findall(r"^\| (`[^|]*)\|", text.partition("## Everything")[2].partition("\n## ")[0], re.MULTILINE)
    named = {name for cell in cells[1:] for name in re.findall(r"`(?:await )?(\w+)", cell)}
    assert named == {name for name in vars(Context) if not name.startswith("_")} - {"call"}
