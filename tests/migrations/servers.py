"""The 25 servers that the rule picked, and those that it passed over: docs/decisions/0061 has the rule.

`locks/` has the releases of everything that each of them needs.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class PublicServer(NamedTuple):
    """`entry` is what its `command` calls; `lines` are those of its Python files."""

    name: str
    version: str
    framework: str
    command: str
    entry: str
    lines: int


SERVERS: Final = [
    PublicServer(
        "mcp-server-apache-airflow-fastmcp",
        "0.2.9",
        "FastMCP 2.12.4",
        "mcp-server-apache-airflow",
        "src.main:main",
        1684,
    ),
    PublicServer(
        "linkedin-mcp-server",
        "1.0.0",
        "FastMCP 2.14.3",
        "linkedin-mcp-server",
        "linkedin_mcp_server.__main__:main",
        1825,
    ),
    PublicServer(
        "iflow-mcp-seanpedersen-youtube-transcript-mcp-server",
        "0.1.0",
        "FastMCP 2.14.5",
        "youtube-transcript",
        "mcp_server:main",
        35,
    ),
    PublicServer(
        "bus-mgmt-mcp-server",
        "0.1.14",
        "FastMCP 2.2.7",
        "bus-mgmt-mcp-server",
        "bus_mgmt_mcp_server.bus_mgmt_mcp_server:main",
        11,
    ),
    PublicServer(
        "iflow-mcp-weiyuan-lane-mcp-exchange-rate-server",
        "0.1.0",
        "FastMCP 2.14.5",
        "exchange-rate-server",
        "main:start_mcp_server",
        180,
    ),
    PublicServer("earthquake-mcp-server", "0.1.0", "FastMCP 3.2.3", "earthquake-mcp-server", "src.server:main", 546),
    PublicServer("mcp-server-codetree", "0.2.0", "FastMCP 3.2.0", "codetree", "codetree.__main__:main", 7126),
    PublicServer("bearblog-mcp-server", "0.3.0", "FastMCP 3.2.0", "bearblog-mcp", "bearblog_mcp.server:main", 1871),
    PublicServer(
        "openfoodfacts-mcp-server", "0.1.0", "FastMCP 3.2.1", "openfoodfacts-mcp-server", "src.server:main", 515
    ),
    PublicServer("godot-mcp-server", "1.0.2", "FastMCP 3.2.3", "godot-mcp-server", "godot_mcp_server:main", 3928),
    PublicServer(
        "iflow-mcp-hk-transportation-mcp-server",
        "0.3.0",
        "FastMCP 4.1.2",
        "hk_transportation_mcp_server",
        "hkopenai.hk_transportation_mcp_server.__main__:main",
        317,
    ),
    PublicServer(
        "iflow-mcp-hkopenai-hk-finance-mcp-server",
        "0.1.8",
        "FastMCP 4.1.2",
        "hk_finance_mcp_server",
        "hkopenai.hk_finance_mcp_server.__main__:main",
        1031,
    ),
    PublicServer("cnki-mcp-server", "0.2.1", "FastMCP 4.1.2", "cnki-mcp", "cnki_mcp:main", 2043),
    PublicServer(
        "mcp-server-sample", "0.1.4", "FastMCP 4.1.2", "mcp-server-sample", "ecommerce_mcp_server.server:main", 337
    ),
    PublicServer(
        "iflow-mcp-yangbuyiya-yby6-video-mcp-server",
        "1.0.2",
        "FastMCP 4.1.2",
        "yby6_video_mcp_server",
        "yby6_video_mcp_server.server:main",
        2017,
    ),
    PublicServer("agent-server-card-mcp", "0.1.0", "SDK 1.26.0", "server-card-server", "src.server:main", 751),
    PublicServer(
        "system-info-mcp-server", "1.0.1", "SDK 1.9.4", "system-info-mcp-server", "system_info_mcp.server:main", 894
    ),
    PublicServer(
        "mcp-log-search-server", "0.1.4", "SDK 1.12.2", "mcp-log-search-server", "mcp_shell_server:main", 1371
    ),
    PublicServer(
        "douyin-mcp-server-ali", "1.2.0", "SDK 1.11.0", "douyin-mcp-server", "douyin_mcp_server_ali.server:main", 380
    ),
    PublicServer(
        "echo-mcp-server-for-testing",
        "0.1.5",
        "SDK 1.6.0",
        "echo-mcp-server-for-testing",
        "echo_mcp_server_for_testing.main:main",
        49,
    ),
    PublicServer(
        "awslabs-well-architected-security-mcp-server",
        "0.2.0",
        "SDK 2.1.1",
        "awslabs.well-architected-security-mcp-server",
        "awslabs.well_architected_security_mcp_server.server:main",
        5602,
    ),
    PublicServer("cai-mcp-server", "0.2.13", "SDK 2.0.0", "cai-mcp-server", "cai_mcp_server.server:main", 4281),
    PublicServer("tmux-mcp-server", "1.0.0", "SDK 2.0.0", "tmux-mcp", "tmux_mcp.__main__:main", 2325),
    PublicServer("vision-mcp-server", "0.2.0", "SDK 2.0.0", "vision-mcp-server", "vision_mcp.server:main", 337),
    PublicServer("chat-mcp-servers", "0.2.0", "SDK 2.0.0", "chat-mcp-slack", "chat_mcp.slack_server:main", 576),
]

# Passed over on the way → why.
PASSED_OVER: Final = {
    "age-mcp-server": "needs a newer Python",
    "azure-fhir-mcp-server": "needs a newer Python",
    "azure-iot-hub-mcp-server": "needs a newer Python",
    "cdmn-mcp-server": "it cannot be installed",
    "charles-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "cli-mcp-server-fastmcp": "needs credentials or settings",
    "ct-jsm-ops-mcp-server": "needs credentials or settings",
    "dmc-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "iflow-mcp-cloudera-iceberg-mcp-server": "needs a newer Python",
    "iflow-mcp-higress-ai-search-mcp-server": "needs credentials or settings",
    "iflow-mcp-letta-mcp-server-railway": "does not start on stdio without arguments, or lists no tool",
    "iflow-mcp-openpyxl-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "iflow-mcp-rootly-mcp-server": "needs a newer Python",
    "iflow-mcp-vinnividivicci-ids-mcp-server": "more than 300 MB",
    "league-analysis-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "maplestory-mcp-server": "needs a newer Python",
    "mcp-metatrader5-server": "needs a newer Python",
    "mcp-server-attom": "needs credentials or settings",
    "mcp-server-canteen": "needs credentials or settings",
    "mcp-server-demo-chyanwu": "needs a newer Python",
    "mcp-server-nmap": "does not start on stdio without arguments, or lists no tool",
    "mseep-prefect-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "oracle-oci-faaas-mcp-server": "it cannot be installed",
    "orange-shotgrid-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "querido-diario-mcp-server": "needs a newer Python",
    "searxng-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "splitwise-mcp-server": "needs credentials or settings",
    "talkops-argo-rollout-mcp-server": "it cannot be installed",
    "trading212-mcp-server": "does not start on stdio without arguments, or lists no tool",
    "transcription-mcp-server": "needs a newer Python",
    "wiki-js-mcp-server": "needs credentials or settings",
    "wikipedia-mcp-server": "needs a newer Python",
}
