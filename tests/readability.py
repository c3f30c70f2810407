"""`python -m tests.readability` lists how easy each guide is to read: Flesch reading ease of its prose, hardest first.

100 is very easy, 60 is plain English, below 45 is hard. Code, tables, headings and inline code do not count.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]

# Written for looking up, not for reading.
LEFT_OUT = {"reference.md"}

NOT_PROSE = re.compile(
    r"\A---\n.*?\n---\n|^```.*?^```$|<!--.*?-->|^ *\|[^\n]*$|^#+ [^\n]*$",
    re.DOTALL | re.MULTILINE,
)
PICTURE = re.compile(r"!\[[^]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
INLINE_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
# A paragraph or an item of a list ends a sentence, too.
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
SENTENCE = re.compile(r"(?<=[.!?])[\"')*_]*\s+")
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
VOWELS = re.compile(r"[aeiouy]+")
# Vowels side by side that are two syllables: client, issuer, layer, being.
APART = re.compile(r"ie[nt]|i[ao](?!n)|[uy]er|[aeouy]ing")
SILENT = re.compile(r"[^aeiouyl]e$|[aeiou]les?$|[^aeiouytd]ed$|[^aeiouysxzcghl]es$")


def prose(text: str) -> list[str]:
    """The sentences of a page."""
    for pattern, instead in ((NOT_PROSE, "\n\n"), (PICTURE, ""), (INLINE_CODE, ""), (LINK, r"\1")):
        text = pattern.sub(instead, text)
    found = (" ".join(sentence.split()) for block in BLOCK.split(text) for sentence in SENTENCE.split(block))
    return [sentence for sentence in found if WORD.search(sentence)]


def syllables(word: str) -> int:
    """How many syllables an English word has, near enough. Abbreviations are spelled out: HTTP has four."""
    if word.isupper():
        return len(word)
    word = word.lower()
    count = len(VOWELS.findall(word)) + len(APART.findall(word)) - (SILENT.search(word) is not None)
    return max(count, 1)


def ease(sentences: list[str]) -> float:
    """Flesch reading ease: 206.835 - 1.015 words a sentence - 84.6 syllables a word."""
    words = [word for sentence in sentences for word in WORD.findall(sentence)]
    if not words:
        return 100.0
    return 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * sum(map(syllables, words)) / len(words)


def pages() -> list[Path]:
    """The README and every guide."""
    guides = (page for page in (ROOT / "docs").rglob("*.md") if page.name not in LEFT_OUT)
    return [ROOT / "README.md", *sorted(guides)]


def scores() -> dict[str, float]:
    """The ease of each page, by its path in the repository."""
    return {page.relative_to(ROOT).as_posix(): ease(prose(page.read_text(encoding="utf-8"))) for page in pages()}


def main() -> None:
    found = scores()
    for page, score in sorted(found.items(), key=lambda item: item[1]):
        print(f"{score:6.1f}  {page}")
    print(f"{median(found.values()):6.1f}  the median of {len(found)} pages")


if __name__ == "__main__":
    main()
