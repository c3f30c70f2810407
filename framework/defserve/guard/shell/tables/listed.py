"""Programs that run only when the author lists them by name."""

from __future__ import annotations

from defserve.guard.shell.specs import Table
from defserve.guard.shell.tables.refused import KINDS

# These take code in their operands, or options behind them.
_TAKES_CODE = "psql mysql gdb bc dc m4 erl ghci ipython irb octave swipl sbcl R expect"
_SCRIPT = " ".join(name for name, kind in KINDS.items() if kind == "interpreter" and name not in _TAKES_CODE.split())
_TASKS = "ninja just rake gradle gradlew mvn ant task"

ON_REQUEST: Table = {
    _TAKES_CODE: "%never",
    # The script is a file; what follows is for the script. Code in an option or on standard input is refused.
    _SCRIPT: "!x %leading | script pattern*",
    "rm": """
        !w -dfiIrRv --force --interactive?never|once|always --one-file-system --preserve-root --recursive --dir
        --verbose | delete+
    """,
    "rmdir": "!w -pv --ignore-fail-on-non-empty --parents --verbose | delete+",
    "unlink": "!w | delete",
    "shred": """
        !w -fuvxz -n,--iterations:number -s,--size:number --force --verbose --exact --zero --remove?name | delete+
    """,
    "truncate": "!w -co -s,--size:text --no-create --io-blocks | delete+",
    "curl": """
        !n -sSfgiIv46#N0 -G -k --silent --show-error --fail --fail-with-body --globoff --include --head --verbose
        --ipv4 --ipv6 --progress-bar --no-progress-meter --no-buffer --compressed --http1.1 --http2 --get --tlsv1.2
        --tlsv1.3 --raw --no-keepalive -q,--disable -X,--request:name!w -H,--header:header -A,--user-agent:text
        -e,--referer:text
        -m,--max-time,--connect-timeout,--retry,--retry-delay,--retry-max-time,--max-filesize,--limit-rate:number
        -r,--range:numbers -w,--write-out:written-out -d,--data,--data-ascii,--json:data!w --data-raw:text!w --url:url
        -o,--output:write | url*
    """,
    # wget follows redirects to hosts that nobody judged, unless it is told not to.
    "wget": """
        !n -qdS46 --quiet --verbose --no-verbose --spider --server-response --max-redirect:=0@1
        -T,--timeout,-t,--tries,-w,--wait,--limit-rate:number -U,--user-agent:text --header:header
        -O,--output-document:write --no-hsts --no-netrc --no-config | nothing+ | !w downloaded+
    """,
    "make gmake": """
        !x %tasks -kinsqtBerRSw -j,--jobs?number -l,--load-average?number -O,--output-sync?name --keep-going --dry-run
        --just-print --silent --quiet --always-make --ignore-errors --question --trace --no-print-directory
        --print-directory --warn-undefined-variables | task*
    """,
    _TASKS: "!x %tasks -qvn --quiet --verbose --dry-run --info --list -l | task*",
}

UNKNOWN_DANGERS = frozenset(
    """
    --exec --exec-path --exec-batch --execute --command --eval --output --output-file --output-directory --out --pager
    --editor --shell --script-shell --upload-pack --receive-pack --rsh --rsh-command --rsync-path --pre --to-command
    --use-compress-program --compress-program --checkpoint-action --ext-diff --init-file --rcfile --proxy-command
    --filter-program --plugin --load --preload --require --toolexec --delete
""".split()
)
"""For a program nobody knows that the author opened: the flags that run or write in the programs we know."""
