import pytest
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server")


def test_the_view_shows_a_roll_and_its_button_rolls_again(client: SyncClient) -> None:
    app = client.render("roll", count=3)
    assert len(app.value["dice"]) == 3
    assert 'host.call("roll_again"' in app.html
    assert len(app.call("roll_again", count=5)["dice"]) == 5


def test_the_view_reaches_no_network(client: SyncClient) -> None:
    assert "connect-src 'none'" in client.render("roll").policy


def test_a_client_without_views_gets_a_text(client: SyncClient) -> None:
    client.offers()
    assert "roll_again" not in [tool["name"] for tool in client.tools()]
    assert '"total"' in client.call_raw("roll")["content"][0]["text"]
