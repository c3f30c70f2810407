"""A server for the golden files: what it gives back is Markdown, and one of its tools is dangerous."""

from __future__ import annotations

from defserve import Server, dangerous, safe

server = Server("desk", version="0.3.0")

REPORT = """# Loans

Two books are **out**, one of them `overdue`. See [the rules](https://example.com/rules).

- Solaris, to Ann
- Emma, to Bob
  1. reminded
  2. not returned

```python
overdue = [loan for loan in loans if loan.due < today]
```

| book | to | days |
|---|---|---:|
| Solaris | Ann | 3 |
| 雪国 | Bob | 120 |

## Rules

> Four weeks, then a reminder.
"""


@server.tool
@safe
def report() -> str:
    """The loans of this week."""
    return REPORT


@server.tool
@dangerous("filesystem.write")
def burn(title: str, token: str = "") -> str:
    """Burn a book."""
    return f"{title} is burnt"
