"""URLs and addresses, judged by their text.

In the corpora **B** must be refused and **A** allowed. **R** is a harmless-looking name: by its text it is allowed, and
only its addresses can tell whether it is public, and they are looked up when the URL is fetched.
"""

from __future__ import annotations

import ipaddress
import json
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.guard.network import judge, judge_address, parse_authority
from tests.effort import cpu_within
from tests.rows import for_each_row

CORPORA = Path(__file__).parents[1] / "corpora"
CASES = [
    (case["url"], case["expected"])
    for name in ("url.jsonl", "url_more.jsonl")
    for case in map(json.loads, (CORPORA / name).read_text(encoding="utf-8").splitlines())
]


def test_the_corpus_is_judged_as_expected() -> None:
    verdicts = [(url, expected, judge(url)) for url, expected in CASES]
    assert [url for url, expected, verdict in verdicts if verdict.allowed is (expected == "B")] == []
    assert [url for url, _, verdict in verdicts if bool(verdict.violations) is verdict.allowed] == []


def test_an_allowed_url_is_understood_the_same_way_again_and_by_the_client() -> None:
    import httpx2

    for url in (url for url, expected in CASES if expected != "B"):
        normal = judge(url).url
        assert normal is not None, url
        assert normal.isascii(), url
        assert judge(normal).url == normal, url
        host = httpx2.URL(normal).raw_host.decode()
        assert host == parse_authority(normal).host == parse_authority(url).host, url


@for_each_row(
    ("url", "normal"),
    [
        ("HTTP://Example.COM.:80", "http://example.com/"),
        ("https://bücher.example:8443/ä?ö#ü", "https://xn--bcher-kva.example:8443/%C3%A4?%C3%B6#%C3%BC"),
        ("http://example.com#@127.0.0.1/", "http://example.com/#@127.0.0.1/"),
        ("http://example.com?@127.0.0.1/", "http://example.com/?@127.0.0.1/"),
        ("https://example.com/100%/%2f?a[]=|", "https://example.com/100%25/%2f?a%5B%5D=%7C"),
        ("http://[2606:4700:0::0:1111]:443/", "http://[2606:4700::1111]:443/"),
    ],
)
def test_the_url_is_written_plainly(url: str, normal: str) -> None:
    assert judge(url).url == normal


@for_each_row(
    ("url", "rule"),
    [
        ("ftp://example.com/", "scheme"),
        ("example.com", "syntax"),
        ("http://exa mple.com/", "character"),
        ("http://user:hunter2@example.com/", "userinfo"),
        ("http://%6cocalhost/", "host"),
        ("http://0x7f.1/", "numeric-host"),
        ("http://example.com:22/", "port"),
        ("http://10.0.0.1/", "private-address"),
        ("http://printer.local/", "private-name"),
        ("http://example.com/" + "a" * 9_000, "length"),
    ],
)
def test_a_refusal_names_its_rule(url: str, rule: str) -> None:
    assert [violation.rule for violation in judge(url).violations] == [rule]


def test_a_refusal_says_every_reason_at_once_and_what_would_be_allowed() -> None:
    verdict = judge("http://10.0.0.1:22/", hosts=["example.com"])
    assert [violation.rule for violation in verdict.violations] == ["port", "host-list", "private-address"]
    assert verdict.hints == {
        "allowed_schemes": ["http", "https"],
        "allowed_ports": [80, 443, 8080, 8443],
        "allowed_hosts": ["example.com"],
        "nearest": ["example.com"],
    }


def test_a_password_is_not_repeated() -> None:
    assert "hunter2" not in str(judge("http://user:hunter2@127.0.0.1/"))


@for_each_row(
    ("options", "url", "allowed"),
    [
        ({"ports": None}, "http://example.com:22/", True),
        ({"ports": None}, "http://example.com:65536/", False),
        ({"ports": (8000,)}, "http://example.com/", False),
        ({"schemes": ("https",)}, "http://example.com/", False),
        ({"schemes": ("wss",)}, "wss://example.com/", True),
        ({"schemes": ("file",)}, "file://example.com/", False),
        ({"hosts": ["example.com"]}, "http://EXAMPLE.com./", True),
        ({"hosts": ["example.com"]}, "http://a.example.com/", False),
        ({"hosts": ["*.example.com"]}, "http://a.b.example.com/", True),
        ({"hosts": ["*.example.com"]}, "http://example.com/", False),
        ({"hosts": ["*.example.com"]}, "http://evilexample.com/", False),
        ({"hosts": ["bücher.example"]}, "http://xn--bcher-kva.example/", True),
        ({"hosts": ["*.BÜCHER.example."]}, "http://a.bücher.example/", True),
        ({"hosts": ["\u200b.example"]}, "http://a.example/", False),
        ({"hosts": ["127.0.0.1", "localhost"]}, "http://127.0.0.1/", False),
        ({"private": ["127.0.0.1:8000"]}, "http://127.0.0.1:8000/x", True),
        ({"private": ["127.0.0.1:8000"]}, "http://127.0.0.1:8001/x", False),
        ({"private": ["127.0.0.1:8000"]}, "http://localhost:8000/x", False),
        ({"private": ["127.0.0.1:8000"]}, "http://user@127.0.0.1:8000/x", False),
        ({"private": ["[::1]:8000"]}, "http://[0::1]:8000/x", True),
        ({"private": ["localhost:80"], "hosts": ["example.com"]}, "http://LOCALHOST/", True),
    ],
)
def test_options_widen_and_narrow(options: dict[str, Any], url: str, allowed: bool) -> None:
    assert judge(url, **options).allowed is allowed


@for_each_row(
    "address",
    """127.0.0.1 0.0.0.0 10.1.2.3 100.64.0.1 168.63.129.16 169.254.169.254 192.0.0.192 192.168.0.1 198.19.255.255
    224.0.0.1 255.255.255.255 :: ::1 ::7f00:1 ::ffff:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::808:808 2002:7f00:1::
    2001:0:808:808::80ff:fffe 2001:db8::1 2606::5efe:a00:1 2606::200:5efe:a00:1 fc00::1 fe80::1 fe80::1%eth0
    2606:4700::1111%eth0 fec0::1 ff02::1 2001:2::1 2001:20::1 2001:1ff::1 100::1 4000::1 example.com 127.1 017.0.0.1
    """.split(),
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not judge_address(address)


@for_each_row(
    "address",
    """1.1.1.1 8.8.8.8 100.63.255.255 172.32.0.1 192.0.1.1 223.255.255.255 2606:4700::1111 2001:4860:4860::8888
    2001:200::1 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808:: 2001:0:808:808::f7f7:f7f7""".split(),
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert judge_address(address)
    assert judge_address(ipaddress.ip_address(address))


@given(st.integers(0, 2**32 - 1))
def test_what_is_allowed_of_ipv4_is_public_for_python_too(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    assert address.is_global or not judge_address(address)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["::ffff:0:0", "64:ff9b::", "2606:4700::5efe:0:0"]))
def test_an_address_that_carries_another_is_no_better_than_it(number: int, around: str) -> None:
    inner = ipaddress.IPv4Address(number)
    outer = ipaddress.IPv6Address(int(ipaddress.IPv6Address(around)) | number)
    assert judge_address(outer).allowed is judge_address(inner).allowed


AUTHORITIES = st.text(alphabet="0123456789abcdefx.:[]@%/\\#?-_ ①。ⓛ\u200d\u00ad\ud800xn", max_size=40)


@given(st.one_of(st.text(), st.binary(), AUTHORITIES.map("http://{}".format), AUTHORITIES.map("http://xn--{}/".format)))
def test_judging_never_raises(url: Any) -> None:
    verdict = judge(url)
    assert verdict.allowed is (verdict.url is not None)
    if verdict.url is not None:
        assert judge(verdict.url).url == verdict.url


@given(st.one_of(st.text(), st.text(alphabet="0123456789abcdef:.%")))
def test_judging_an_address_never_raises(address: str) -> None:
    judge_address(address)


@for_each_row(
    "piece", ["a", "a.", "[", "[::", "@", "%", "%2", "\\", "ä", "①.", "xn--a.", "http://", ":", "1.", "?", "#", "\x00"]
)
def test_ten_kilobytes_are_judged_at_once(piece: str) -> None:
    for length in (7_990, 10_000):
        url = ("http://" + piece * length)[:length]
        assert cpu_within(1, partial(judge, url))
