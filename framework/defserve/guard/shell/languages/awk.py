"""awk: patterns, printing and arithmetic. No commands, pipes, redirects, `getline`, own functions or environment.

A recursive descent over the whole program. Where awks differ on what a slash is (after `)` or `++`, in brackets), the
program is refused: text that one awk takes for a regular expression is code for another.
"""

from __future__ import annotations

import re

DEEPEST = 50

_TOKEN = re.compile(
    r"""
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>\*\*=?|\^=|[-+*/%<>=!]=|\+\+|--|&&|\|\||!~|[-+*/%^~<>=!?:;,(){}[\]$])
    """,
    re.VERBOSE | re.ASCII,
)
_EXPRESSION = re.compile(r"/(?:[^/\\\[\]\n]|\\[^\n]|\[\^?(?!\])(?:\[:\w+:\]|\\[^\]/\n]|[^\]\[/\\\n])+\])*/")

_FUNCTIONS = frozenset(
    "atan2 cos exp gensub gsub index int length log match mktime rand sin split sprintf sqrt srand strftime strtonum"
    " sub substr systime tolower toupper and or xor compl lshift rshift asort asorti patsplit typeof isarray".split()
)
_KEYWORDS = frozenset(
    "BEGIN END BEGINFILE ENDFILE function func if else while for do break continue next nextfile exit return delete in"
    " getline print printf switch case default".split()
)
# These reach files, processes, the environment or other functions.
_REFUSED = frozenset("system close fflush getline ENVIRON PROCINFO SYMTAB FUNCTAB ARGV ARGC ERRNO".split())
_ASSIGNING = frozenset("= += -= *= /= %= ^= **=".split())
_ADDING, _MULTIPLYING = frozenset("+-"), frozenset("*/%")
_COMPARING = frozenset(("<", "<=", "==", "!=", ">", ">=", "~", "!~"))


def problem(script: str) -> str | None:
    """Why this program is not known to be harmless, or None."""
    try:
        _Program(script).whole()
    except _NotKnown as why:
        return str(why)
    return None


class _NotKnown(Exception):
    pass


class _Program:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.before = ""
        self.kind = ""
        self.now = ""
        self.depth = 0
        self.spaced = False
        self.step()

    # --- words -------------------------------------------------------------------------------------------------------

    def step(self) -> str:
        """Go to the next word. A slash is a mark until `operand` finds that it begins a regular expression."""
        self.before = self.now
        start = self.at
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        self.spaced = self.at > start
        if self.at == len(self.text):
            self.kind, self.now = "end", ""
            return self.before
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise _NotKnown(f"'{self.text[self.at]}'")
        self.kind, self.now, self.at = found.lastgroup or "", found[0], found.end()
        if self.kind == "name" and self.now in _REFUSED:
            raise _NotKnown(f"'{self.now}'")
        return self.before

    def take(self, word: str) -> bool:
        if self.kind in ("mark", "name") and self.now == word:
            self.step()
            return True
        return False

    def need(self, word: str) -> None:
        if not self.take(word):
            raise _NotKnown(f"'{self.now or 'its end'}' where '{word}' was expected")

    def is_one(self, words: frozenset[str]) -> bool:
        return self.kind == "mark" and self.now in words

    # --- items and statements ----------------------------------------------------------------------------------------

    def whole(self) -> None:
        if self.kind == "end":
            raise _NotKnown("it is empty")
        while self.kind != "end":
            if self.take(";"):
                continue
            if not (self.take("BEGIN") or self.take("END")) and self.now != "{":
                self.value()
                if self.take(","):
                    self.value()
            if self.now == "{":
                self.block()

    def block(self) -> None:
        self.need("{")
        while not self.take("}"):
            self.statement()

    def statement(self) -> None:
        self.deeper()
        if self.take(";"):
            pass
        elif self.now == "{":
            self.block()
        elif self.now in ("if", "while"):
            word = self.step()
            self.condition()
            self.statement()
            if word == "if" and self.take("else"):
                self.statement()
        elif self.take("do"):
            self.statement()
            self.need("while")
            self.condition()
            self.end()
        elif self.take("for"):
            self.loop()
        else:
            self.simple()
            self.end()
        self.depth -= 1

    def condition(self) -> None:
        self.need("(")
        self.value()
        self.need(")")

    def loop(self) -> None:
        """`for (k in a)` or `for (i = 1; i < n; i++)`."""
        self.need("(")
        if self.now != ";":
            self.simple()
        if not self.take(")"):
            self.need(";")
            if self.now != ";":
                self.value()
            self.need(";")
            if self.now != ")":
                self.simple()
            self.need(")")
        self.statement()

    def simple(self) -> None:
        if self.take("print") or self.take("printf"):
            if not self.ends():
                self.values(printed=True)
        elif any(self.take(word) for word in ("next", "nextfile", "break", "continue")):
            return
        elif self.take("exit"):
            if not self.ends():
                self.value()
        elif self.take("delete"):
            self.unary(False)
        else:
            self.value()

    def ends(self) -> bool:
        return self.kind == "end" or (self.kind == "mark" and self.now in (";", "}"))

    def end(self) -> None:
        if not self.take(";") and not self.ends():
            raise _NotKnown(f"'{self.now}' where ';' was expected")

    # --- values ------------------------------------------------------------------------------------------------------

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _NotKnown("it is nested too deeply")

    def values(self, printed: bool = False) -> None:
        self.value(printed)
        while self.take(","):
            self.value(printed)

    def value(self, printed: bool = False) -> None:
        """`printed`: outside brackets after `print`, where `>` writes a file."""
        self.deeper()
        self.comparison(printed)
        while self.now in ("&&", "||", "in", "?") or self.is_one(_ASSIGNING):
            if self.step() == "?":
                self.value(printed)
                self.need(":")
            self.comparison(printed)
        self.depth -= 1

    def comparison(self, printed: bool) -> None:
        self.joined(printed)
        while self.is_one(_COMPARING) and not (printed and self.now == ">"):
            self.step()
            self.joined(printed)

    def joined(self, printed: bool) -> None:
        """Sums, products and what stands side by side."""
        self.unary(printed)
        while True:
            if self.is_one(_ADDING | _MULTIPLYING) or self.now in ("^", "**"):
                if self.now == "/" and self.before in ("++", "--", "length"):
                    raise _NotKnown(f"a slash after '{self.before}'")
                self.step()
                self.unary(printed)
            elif self.now not in _KEYWORDS if self.kind == "name" else self.begins_operand():
                self.unary(printed)
            else:
                return

    def begins_operand(self) -> bool:
        return self.kind in ("number", "text") or (self.kind == "mark" and self.now in ("$", "(", "!", "++", "--"))

    def unary(self, printed: bool) -> None:
        self.deeper()
        if self.kind == "mark" and self.now in ("!", "-", "+", "++", "--", "$"):
            self.step()
            self.unary(printed)
        else:
            self.operand()
        while self.kind == "mark" and self.now in ("++", "--"):
            self.step()
        self.depth -= 1

    def operand(self) -> None:
        if self.kind in ("number", "text"):
            self.step()
        elif self.kind == "mark" and self.now in ("/", "/="):
            self.expression()
        elif self.take("("):
            self.values()
            self.need(")")
        elif self.kind == "name" and self.now not in _KEYWORDS:
            self.named()
        else:
            raise _NotKnown(f"'{self.now or 'its end'}'")

    def named(self) -> None:
        name = self.step()
        if self.now == "(" and not self.spaced and name not in _FUNCTIONS:
            raise _NotKnown(f"'{name}' is not among the functions known to be harmless")
        if name in _FUNCTIONS and self.take("("):
            if not self.take(")"):
                self.values()
                self.need(")")
        elif self.take("["):
            self.values()
            self.need("]")
            while self.take("["):
                self.values()
                self.need("]")

    def expression(self) -> None:
        if self.before in (")", "++", "--"):
            raise _NotKnown(f"a slash after '{self.before}'")
        found = _EXPRESSION.match(self.text, self.at - len(self.now))
        if not found:
            raise _NotKnown("a regular expression that cannot be read for sure")
        self.at, self.now = found.end(), found[0]
        self.step()
