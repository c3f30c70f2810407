from __future__ import annotations

from defserve.inspector.app_views import is_near, is_remote, make_refused_origin_check, narrow_content_policy
from defserve.protocols.mcp.app_policy import build_content_security_policy
from tests.rows import for_each_row


@for_each_row(
    "host, near",
    [
        ("localhost", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("0.0.0.0", True),
        ("10.1.2.3", True),
        ("192.168.0.1", True),
        ("169.254.169.254", True),
        ("100.64.0.1", True),
        ("printer", True),
        ("nas.local", True),
        ("metadata.google.internal.", True),
        ("example.com", False),
        ("8.8.8.8", False),
    ],
)
def test_a_host_is_near_if_its_name_says_so(host: str, near: bool):
    assert is_near(host) is near


@for_each_row(
    "address, remote",
    [
        ("https://mcp.example.com/mcp", True),
        ("http://10.0.0.7/mcp", True),
        ("http://127.0.0.1:8000/mcp", False),
        ("http://localhost:8000/mcp", False),
        ("http://[::1]:8000/mcp", False),
        ("weather.py", False),
        ("npx -y some-server", False),
    ],
)
def test_a_server_that_this_machine_runs_is_not_remote(address: str, remote: bool):
    assert is_remote(address) is remote


def test_no_view_reaches_the_inspector_and_one_of_a_server_elsewhere_reaches_nothing_near():
    named = ["http://127.0.0.1:4000", "ws://localhost:4001", "http://localhost:80", "https://*.lan.internal"]
    policy = build_content_security_policy(
        {"connectDomains": [*named, "https://api.example.com", "https://a.example:99999"]}
    )
    own = {4000, 4001}
    _, reaches, refused = narrow_content_policy(policy, make_refused_origin_check(own, "server.py"))
    assert reaches == ["http://localhost:80", "https://*.lan.internal", "https://api.example.com"]
    assert refused == [*named[:2], "https://a.example:99999"]
    kept, reaches, refused = narrow_content_policy(policy, make_refused_origin_check(own, "https://mcp.example.com"))
    assert reaches == ["https://api.example.com"] and len(refused) == 5
    assert "connect-src https://api.example.com;" in kept and "script-src 'self' 'unsafe-inline';" in kept


def test_a_directive_that_loses_all_its_origins_allows_nothing():
    policy = build_content_security_policy({"frameDomains": ["http://127.0.0.1:4000"]})
    assert "frame-src 'none'" in narrow_content_policy(policy, make_refused_origin_check({4000}, ""))[0]
