from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from defserve import ToolError
from defserve.testing import SyncClient

pytestmark = pytest.mark.usefixtures("forked")

PROGRAM = Path(__file__).parents[3] / "examples" / "cookbook" / "uploads.py"


def encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def test_a_column_is_added_up(client: SyncClient):
    table = encode("item,price\n" + 'tea,"1.5"\n' * 20_000 + "milk,2")
    assert client.call("add_up", table=table, column="price") == "upload: 20001 rows, price is 30002 in all"


@pytest.mark.serves(f"{PROGRAM}:server", over=("stdio", "http"))
def test_a_file_comes_over_every_transport(client: SyncClient):
    table = "data:text/csv;name=may.csv;base64," + encode("price\n1")
    assert client.call("add_up", table=table, column="price") == "may.csv: 1 rows, price is 1 in all"
    (tool,) = client.request("tools/list")["tools"]
    assert tool["inputSchema"]["properties"]["table"]["description"] == "A CSV file with a header."
    assert tool["_meta"]["openai/fileParams"] == ["table"]


def test_an_empty_line_is_no_row(client: SyncClient):
    assert client.call("add_up", table=encode("price\n\n2\n"), column="price").startswith("upload: 1 rows")


def test_what_is_no_table_is_refused(client: SyncClient):
    with pytest.raises(ToolError, match="There is no column 'cost', only item, price"):
        client.call("add_up", table=encode("item,price\n"), column="cost")
    with pytest.raises(ToolError, match="Row 2 has no number"):
        client.call("add_up", table=encode("price\n1\nfree\n"), column="price")
    with pytest.raises(ToolError, match="it is application/pdf"):
        client.call("add_up", table=encode("%PDF-1.7"), column="price")
    with pytest.raises(ToolError, match="A line is longer"):
        client.call("add_up", table=encode("price\n" + "1" * 300_000), column="price")
