from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from defserve import ToolError
from defserve.testing import SyncClient

pytest.importorskip("psycopg_pool", reason="psycopg is not installed (pip install 'psycopg[binary,pool]')")
pytestmark = pytest.mark.usefixtures("database")


def test_money_moves_as_a_whole_or_not_at_all(client: SyncClient):
    assert client.call("open_account", name="ada", cents=100) == "ada has 100 cents"
    client.call("open_account", name="bob", cents=5)
    moved = client.call("transfer", source="ada", target="bob", cents=60)
    assert moved == {"ada": 40, "bob": 65}
    for target, cents in (("bob", 41), ("nobody", 1), ("ada", 100)):
        with pytest.raises(ToolError, match="Nothing was moved"):
            client.call("transfer", source="ada", target=target, cents=cents)
    with pytest.raises(ToolError, match="ada has an account already"):
        client.call("open_account", name="ada", cents=1)
    assert client.call("transfer", source="bob", target="ada", cents=65) == {"ada": 105, "bob": 0}


@pytest.mark.eras("stateless")
def test_transfers_at_the_same_time_lose_nothing(client: SyncClient):
    for name in ("ada", "bob"):
        client.call("open_account", name=name, cents=1000)

    def move(number: int) -> None:
        source, target = ("ada", "bob") if number % 2 else ("bob", "ada")
        client.call("transfer", source=source, target=target, cents=number + 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(move, range(16)))
    assert client.call("transfer", source="ada", target="bob", cents=1) == {"ada": 991, "bob": 1009}
