"""Context management (MGP §10.1): texts are shortened to what a conversation can afford. `notebook.py` keeps them."""

import re

from defserve import Server, safe

server = Server("summariser", "1.0.0")


@server.tool
@safe
def shorten(text: str, words: int = 50) -> str:
    """Shorten a text to its first sentences, up to so many words. The first sentence always stays."""
    kept, count = list[str](), 0
    for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
        count += len(sentence.split())
        if kept and count > words:
            break
        kept.append(sentence)
    return " ".join(kept)


if __name__ == "__main__":
    server.main()
