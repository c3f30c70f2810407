"""`program.py WORDS…` does in a forked process what `python WORDS…` does.

The words are some of FLAGS, and then `-m MODULE`, `-c CODE` or a script, and what is given to it.
"""

import os
import runpy
import sys

FLAGS = ("-B", "-P", "-u")


def main(words: list[str]) -> None:
    flags: set[str] = set()
    while words[0] in FLAGS:
        flags.add(words.pop(0))
    sys.dont_write_bytecode = sys.dont_write_bytecode or "-B" in flags
    # The first is the folder of this file.
    here = os.path.dirname(os.path.abspath(words[0])) if words[0] not in ("-m", "-c") else os.getcwd()
    sys.path[:1] = [] if "-P" in flags else [here]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
