"""The markdown of the page, run by Node where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from defserve import inspector

NODE = shutil.which("node")
PAGE = Path(inspector.__file__).parent / "page"

# Elements as [type, …children], and the milliseconds of processor time that it took.
SCRIPT = """
import { Markdown, isMarkdown } from "./parts/markdown.js";
const plain = node => node?.type ? [node.type, ...[node.props.children].flat(9).map(plain)] : node;
const texts = JSON.parse(process.argv[1]);
console.log(JSON.stringify(texts.map(([start, part, count, end]) => {
  const text = start + part.repeat(count) + end, began = process.cpuUsage();
  isMarkdown(text);
  const made = Markdown({ text }), used = process.cpuUsage(began);
  return [count > 1 ? null : plain(made), (used.user + used.system) / 1000];
})));
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")


def drawn(tmp_path: Path, *texts: tuple[str, str, int, str]) -> list[Any]:
    page = tmp_path / "page"
    for part in ("parts", "vendor"):
        shutil.copytree(PAGE / part, page / part)
    (page / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), "--input-type=module", "-e", SCRIPT, json.dumps(texts)]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, check=True, timeout=50)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_hostile_text_is_drawn_in_time_that_grows_with_its_length(tmp_path: Path):
    blank, count = " ", 20_000
    starts = ["|a|\n", "|a|\n|", "# ", "- ", "1. ", "1", "> ", "---", "* *", "```", "|", "[", "**", "_", ""]
    ends = ["x", "a\u2028", "\nx", "|"]
    texts = [(start, blank, count, end) for start in starts for end in ends]
    texts += [
        ("", part, count, "x") for part in ("|", "-", "*", "`", "[", "- ", "|a|\n", "> ", "#", "1", "\t", "[a](", "_")
    ]
    slow = [(text, ms) for text, (_, ms) in zip(texts, drawn(tmp_path, *texts), strict=True) if ms > 1_000]
    assert not slow


def test_blocks_are_what_they_are_also_with_blanks_at_the_end_of_lines(tmp_path: Path):
    text = "# Head  \r\n|a|b|  \n|-|:-:|  \n|1|2|\n\n---  \n```js  \n  code\n```  \n- one\n- two\n> said\n\nwords"
    ((made, _),) = drawn(tmp_path, (text, "", 1, ""))
    kinds = [each[0] for each in made[1:]]
    assert kinds == ["p", "div", "hr", "pre", "ul", "blockquote", "p"]
    assert made[1] == ["p", "Head"] and made[4] == ["pre", "  code"]
    assert '"th", "a"' in json.dumps(made[2]) and '"td", "2"' in json.dumps(made[2])


PATHS = """
import { resolvePath, splitFrontMatter } from "./parts/markdown.js";
import { Markdown } from "./parts/markdown.js";
const links = [["SKILL.md", "a/b.md"], ["a/b.md", "../c.md#top"], ["a/b.md", "./d%20e.md"], ["b.md", "../../etc"],
  ["a/b.md", "/c.md"]];
const front = "---\\nname: refunds\\ntags:\\n  - a\\n  - b\\n---\\n# Head";
const texts = ["[a](b.md)", "[a](javascript:alert)", "[a](//host/x)"];
const kinds = texts.map(text => Markdown({ text, follow: path => path === "b.md" && (() => 0) })
  .props.children[0].props.children.map(each => each?.type ?? each));
console.log(JSON.stringify({ links: links.map(each => resolvePath(...each)), front: splitFrontMatter(front),
  plain: splitFrontMatter("---\\nno end"), kinds }));
"""


def test_links_inside_of_a_skill_and_front_matter(tmp_path: Path):
    page = tmp_path / "page"
    for part in ("parts", "vendor"):
        shutil.copytree(PAGE / part, page / part)
    (page / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), "--input-type=module", "-e", PATHS]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, check=True, timeout=50)
    told = json.loads(done.stdout)
    assert told["links"] == ["a/b.md", "c.md", "a/d e.md", None, "c.md"]
    assert told["front"] == {"pairs": [["name", "refunds"], ["tags", "- a\n- b"]], "text": "# Head"}
    assert told["plain"] == {"pairs": [], "text": "---\nno end"}
    # What is no file of the skill stays text, whatever it looks like.
    assert told["kinds"] == [["button"], ["[a](javascript:alert)"], ["[a](//host/x)"]]
