from __future__ import annotations

from typing import Any

import pytest

from defserve.protocols.mcp.uri_template import expand_template, parse_template
from tests.rows import for_each_row

VALUES: dict[str, Any] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

# RFC 6570 §3.2.1 to §3.2.9, but for the prefixes.
EXAMPLES = """
{count} one,two,three
{count*} one,two,three
{/count} /one,two,three
{/count*} /one/two/three
{;count} ;count=one,two,three
{;count*} ;count=one;count=two;count=three
{?count} ?count=one,two,three
{?count*} ?count=one&count=two&count=three
{&count*} &count=one&count=two&count=three
{var} value
{hello} Hello%20World%21
{half} 50%25
O{empty}X OX
O{undef}X OX
{x,y} 1024,768
{x,hello,y} 1024,Hello%20World%21,768
?{x,empty} ?1024,
?{x,undef} ?1024
?{undef,y} ?768
{list} red,green,blue
{list*} red,green,blue
{keys} semi,%3B,dot,.,comma,%2C
{keys*} semi=%3B,dot=.,comma=%2C
{+var} value
{+hello} Hello%20World!
{+half} 50%25
{base}index http%3A%2F%2Fexample.com%2Fhome%2Findex
{+base}index http://example.com/home/index
O{+empty}X OX
O{+undef}X OX
{+path}/here /foo/bar/here
here?ref={+path} here?ref=/foo/bar
up{+path}{var}/here up/foo/barvalue/here
{+x,hello,y} 1024,Hello%20World!,768
{+path,x}/here /foo/bar,1024/here
{+list} red,green,blue
{+list*} red,green,blue
{+keys} semi,;,dot,.,comma,,
{+keys*} semi=;,dot=.,comma=,
{#var} #value
{#hello} #Hello%20World!
{#half} #50%25
foo{#empty} foo#
foo{#undef} foo
{#x,hello,y} #1024,Hello%20World!,768
{#path,x}/here #/foo/bar,1024/here
{#list} #red,green,blue
{#list*} #red,green,blue
{#keys} #semi,;,dot,.,comma,,
{#keys*} #semi=;,dot=.,comma=,
{.who} .fred
{.who,who} .fred.fred
{.half,who} .50%25.fred
www{.dom*} www.example.com
X{.var} X.value
X{.empty} X.
X{.undef} X
X{.list} X.red,green,blue
X{.list*} X.red.green.blue
X{.keys} X.semi,%3B,dot,.,comma,%2C
X{.keys*} X.semi=%3B.dot=..comma=%2C
X{.empty_keys} X
X{.empty_keys*} X
{/who} /fred
{/who,who} /fred/fred
{/half,who} /50%25/fred
{/who,dub} /fred/me%2Ftoo
{/var} /value
{/var,empty} /value/
{/var,undef} /value
{/var,x}/here /value/1024/here
{/list} /red,green,blue
{/list*} /red/green/blue
{/keys} /semi,%3B,dot,.,comma,%2C
{/keys*} /semi=%3B/dot=./comma=%2C
{;who} ;who=fred
{;half} ;half=50%25
{;empty} ;empty
{;v,empty,who} ;v=6;empty;who=fred
{;v,bar,who} ;v=6;who=fred
{;x,y} ;x=1024;y=768
{;x,y,empty} ;x=1024;y=768;empty
{;x,y,undef} ;x=1024;y=768
{;list} ;list=red,green,blue
{;list*} ;list=red;list=green;list=blue
{;keys} ;keys=semi,%3B,dot,.,comma,%2C
{;keys*} ;semi=%3B;dot=.;comma=%2C
{?who} ?who=fred
{?half} ?half=50%25
{?x,y} ?x=1024&y=768
{?x,y,empty} ?x=1024&y=768&empty=
{?x,y,undef} ?x=1024&y=768
{?list} ?list=red,green,blue
{?list*} ?list=red&list=green&list=blue
{?keys} ?keys=semi,%3B,dot,.,comma,%2C
{?keys*} ?semi=%3B&dot=.&comma=%2C
{&who} &who=fred
{&half} &half=50%25
?fixed=yes{&x} ?fixed=yes&x=1024
{&x,y,empty} &x=1024&y=768&empty=
{&x,y,undef} &x=1024&y=768
{&list} &list=red,green,blue
{&list*} &list=red&list=green&list=blue
{&keys} &keys=semi,%3B,dot,.,comma,%2C
{&keys*} &semi=%3B&dot=.&comma=%2C
"""


@for_each_row("example", EXAMPLES.split("\n")[1:-1])
def test_the_examples_of_rfc_6570_expand_as_printed(example: str) -> None:
    template, expected = example.split(" ")
    assert expand_template(parse_template(template), VALUES) == expected


@for_each_row(
    ("template", "values", "expected"),
    [
        ("{n}/{b}", {"n": 3, "b": True}, "3/true"),
        ("{a}{b}", {"a": 1, "b": 2}, "12"),
        ("{name}", {"name": "é"}, "%C3%A9"),
        ("café/{a}", {"a": "1"}, "caf%C3%A9/1"),
        ("%c3%a9{+a}", {"a": "%2f"}, "%C3%A9%2F"),
        ("{a*}", {"a": ["x", None]}, "x"),
        ("{?a*}", {"a": {"k": "", "gone": None}}, "?k="),
        ("{a}", {"a": []}, ""),
    ],
)
def test_other_values_expand_plainly(template: str, values: dict[str, Any], expected: str) -> None:
    assert expand_template(parse_template(template), values) == expected


@for_each_row(
    ("template", "reason"),
    [
        ("a/{b", "never closed"),
        ("a}b", "may not stand"),
        ("a b", "may not stand"),
        ("a%2", "may not stand"),
        ("{}", "not a variable's name"),
        ("{?}", "not a variable's name"),
        ("{a,}", "not a variable's name"),
        ("{a b}", "not a variable's name"),
        ("{a**}", "not a variable's name"),
        ("{=a}", "not a variable's name"),
        ("{a{b}}", "not a variable's name"),
        ("{a.}", "not a variable's name"),
        ("{a:3}", "cuts a value short"),
        ("x" * 3000, "at most 2048"),
    ],
)
def test_a_malformed_template_is_refused_with_its_reason(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_template(template)
