"""Tools of developers that read their input, and some that rewrite it: viewers, linters, data bases, archives.

Not here: what loads settings or plug-ins of the project that are code (eslint, prettier, pytest, mypy, pylint, flake8).
"""

from __future__ import annotations

from defserve.guard.shell.specs import Table, with_groups

_GROUPS = {
    "sqlite": """
        %words -readonly,--readonly@1 -header,--header -noheader,--noheader -csv,--csv -json,--json -column,--column
        -line,--line -list,--list -table,--table -box,--box -markdown,--markdown -html,--html -tabs,--tabs
        -quote,--quote -ascii,--ascii -batch,--batch -bail,--bail -safe,--safe -echo,--echo -stats,--stats
        -separator,--separator:char -nullvalue,--nullvalue:text
    """,
    "csv": """
        -tSHKLnliv -c,--columns:names -C,--not-columns:names -d,--delimiter:char -q,--quotechar:char -e,--encoding:name
        -m,--match:pattern -r,--regex:pattern --names --linenumbers --no-header-row --no-inference --csv --json
        --freq-count:few --max-rows:width --max-columns:width --max-column-width:width -p,--escapechar:char
    """,
    "seven": "%words -y -bd -ba -bb:few -r -t:name -x:seven-name -i:seven-name -scs:name -p:text",
}

TOOLS: Table = with_groups(
    {
        "bat batcat": """
            -nApPuf -l,--language:name -r,--line-range:numbers -H,--highlight-line:numbers --paging:=never
            --style:names --color:auto|never|always --decorations:auto|never|always --theme:text --plain --number
            --show-all --tabs:width --wrap:auto|never|character --terminal-width:width --squeeze-blank
            --list-languages --list-themes | read*
        """,
        "eza exa": """
            -1lGxaAdDfFghimnUuHSZorsB -R,--recurse@1 -T,--tree@1 -L,--level:few -I,--ignore-glob:glob -s,--sort:name
            -t,--time:name --all --long --oneline --grid --across --header --inode --links --git --git-ignore --group
            --group-directories-first --only-dirs --only-files --reverse --bytes --binary --modified --created
            --accessed --icons?always|never|auto --no-icons --no-permissions --no-filesize --no-user --no-time
            --color,--colour?always|never|auto --time-style:text --classify | listed* | walked*
        """,
        "ag": """
            -ilLvcnsSwQaoHrRuz0 -G,--file-search-regex:pattern -A,--after?number -B,--before?number -C,--context?number
            -m,--max-count:number --depth:number --ignore,--ignore-dir:glob --hidden --nocolor --color --nogroup
            --group --heading --noheading --nonumbers --numbers --python --js --ts --go --rust --java --cpp --cc
            --ruby --php --html --css --json --yaml --markdown --nobreak --break --column --stats --literal
            --word-regexp --case-sensitive --ignore-case --smart-case --invert-match --files-with-matches
            --files-without-matches --only-matching --count --list-file-types --vimgrep | pattern read*
        """,
        "tokei scc": """
            -fCs -t,--types:names -e,--exclude:glob --files --by-file --hidden --no-ignore --no-ignore-parent
            --no-ignore-vcs -s,--sort:name -o,--output,--format:json|yaml|cbor|csv|tabular|wide|html --no-cocomo
            --no-complexity --wide | walked*
        """,
        "cloc": """
            --by-file --by-file-by-lang --json --yaml --csv --md --xml --quiet --hide-rate --sum-one
            --exclude-dir,--exclude-ext,--exclude-lang,--include-lang,--include-ext:names
            --not-match-d,--match-d:pattern --not-match-f,--match-f:pattern | walked+
        """,
        "lsdiff": """
            -nsEHvN -p,--strip-match:few --strip:few -i,--include:glob -x,--exclude:glob --status --number-files
            --line-number --files:numbers | read*
        """,
        "datamash": """
            -sHWiCfn -g,--group:names -t,--field-separator:char -R,--round:few --sort --header-in --header-out --headers
            --whitespace --ignore-case --full --narm --skip-comments --no-strict --filler:text | pattern+
        """,
        "clang-format": """
            -n,--dry-run -Werror,--Werror. -i!o --verbose --style,--fallback-style:name --lines:numbers
            --sort-includes --assume-filename:pattern | read*
        """,
        "diffstat": "-bcCklmqsuKt -p:few -w:width -n:width -f:few -r:few | read*",
        "colordiff": "-abBcdeEinNpqrstTuwyZ -CU:number --unified?number --brief --side-by-side | read read",
        "sdiff": """
            -iEZbWBatlsdH -w,--width:width -I,--ignore-matching-lines:pattern --ignore-case --ignore-all-space
            --ignore-blank-lines --suppress-common-lines --left-column --expand-tabs --minimal --text | read read
        """,
        "diff3": "-AeEx3iamT -L,--label:text --show-all --merge --text --initial-tab | read read read",
        "wdiff dwdiff": "-123sni --no-deleted --no-inserted --no-common --statistics --ignore-case | read read",
        "zdiff zcmp xzdiff": "-uqbwiB | read read?",
        "bzgrep xzgrep zstdgrep lzgrep": """
            -EFGPiyvwxcHhnlLoqsabI -e:pattern@1 -A:number -B:number -C:number -m:number | pattern read+ | read+
        """,
        "csplit": """
            !w -ksqz -f,--prefix:prefix -b,--suffix-format:split-name -n,--digits:few --keep-files --silent --quiet
            --elide-empty-files --suppress-matched | read pattern+
        """,
        "dos2unix unix2dos mac2unix": """
            !w -qfkosv -n,--newfile@1 -i,--info@2 --quiet --force --keepdate --oldfile --verbose | write+ | read write
            | read+
        """,
        "hexyl": "-v -n,--length:number -s,--skip:number -o,--display-offset:number -c,--bytes:number | read?",
        "crc32 sum": "| read+",
        "gron": "-umscjv --ungron --monochrome --stream --colorize --no-sort --json --values | local?",
        "csvcut csvlook csvgrep csvsort csvstat csvjson": "+csv | local?",
        "xsv qsv": {
            "": "",
            "headers count flatten table stats frequency fixlengths": """
                -jn -d,--delimiter:char -s,--select:names -l,--limit:number --everything --median --mode --no-headers
                --just-names | local*
            """,
            "select search slice sort sample cat": """
                -inrNRv -d,--delimiter:char -s,--select:pattern -l,--len:number -e,--end:number --start:number
                -o,--output:write --no-headers --ignore-case --reverse --numeric --invert-match | pattern local* / local
            """,
        },
        "gofmt": "%words -l -d -s -e -r:text -w!o | read*",
        "shfmt": """
            %words -i:few -d -l -s -mn -ci -sr -kp -bn -fn -f -ln:name -p -w!o | read+
        """,
        "yamllint": """
            -s -f,--format:parsable|standard|colored|github|auto -d:text -c,--config-file:read --strict --no-warnings |
            read+
        """,
        "shellcheck": """
            -f,--format:checkstyle|diff|gcc|json|json1|quiet|tty -s,--shell:sh|bash|dash|ksh|busybox
            -S,--severity:error|warning|info|style -e,--exclude:names -i,--include:names -o,--enable:names
            -W,--wiki-link-count:few -C,--color?auto|always|never --norc --list-optional -V | read*
        """,
        # No option that loads what a document names: --noent, --loaddtd, --valid, --xinclude, --schema, --c14n.
        "xmllint": """
            %words -format,--format -noout,--noout --nonet --noblanks --pretty:0|1|2 --encode:name --xpath:text --html
            --xmlout --recover --dropdtd --nocdata --nsclean --nowarning --quiet --stream
            --sax --timing --debug --push --pattern:text -o,-output,--output:write | local+
        """,
        "ruff": {
            "": "-Vq --version --quiet",
            "check": """
                -vqs -n,--no-cache@1 --fix!w --unsafe-fixes --no-fix --diff --select,--ignore,--extend-select:names
                --extend-ignore,--fixable,--unfixable:names --output-format:name --statistics --show-fixes --preview
                --exit-zero --isolated --line-length:width --target-version:name --exclude,--extend-exclude:glob
                --quiet --verbose --silent | !w read* | read*
            """,
            "format": """
                -vqs -n,--no-cache@1 --check --diff --line-length:width --target-version:name --preview --isolated
                --exclude:glob --quiet --verbose | !w read* | !w read*
            """,
            "rule": "--output-format:text|json | name",
            "linter": "|",
            "version": "--output-format:text|json |",
        },
        "black isort": """
            !w -qvlS -l,--line-length:width -t,--target-version:name --check --check-only --diff --color --quiet
            --verbose --skip-string-normalization --profile:name --exclude,--extend-exclude:text | read+
        """,
        "sqlite3": "+sqlite | !w local-write sql* | local sql-asking*",
        "7z 7za 7zr 7zz": {
            "": "",
            "l t": "+seven -slt | seven-archive seven-name*",
            "h": "+seven -scrc:name | seven-name+",
            "x e": """
                !w +seven -aoa -aos -aou -aot -o:write | seven-archive seven-member*
            """,
            "a u": "!w +seven -mx,-m,-ms,-mhe:seven-set -ssc -stl | local-write seven-source+",
        },
        "unrar": {"": "", "l lb lt v vt t": "| object undashed*"},
        "ar": "| =t|tv object undashed*",
        "pdfinfo": "%words -f:number -l:number -box -meta -isodates -rawdates -enc:name | read",
        "pdftotext": """
            %words -f:number -l:number -layout -raw -nopgbrk -enc:name -q -eol:unix|dos|mac | read =- / !w write /
            !w read write
        """,
        "c++filt": "-npirt | undashed*",
        "addr2line": "-aCfips -e,--exe:object --functions --demangle --pretty-print --inlines | undashed+",
        "pkg-config pkgconf": """
            --modversion --exists --cflags --libs --static --list-all --print-errors --short-errors --print-variables
            --print-requires --print-provides --variable:name --cflags-only-I --libs-only-l --libs-only-L
            --atleast-version,--exact-version,--max-version:name | name*
        """,
        "ssh-keygen": "-v -l@1 -E:sha256|md5 -f:read | nothing+ |",
        "units": "-tvq1s --terse --verbose --quiet --one-line --strict | pattern pattern?",
        "uuidgen": "-rt --random --time |",
        "mcookie clear": "|",
        "tput": "-V@1 | name+ |",
        "namei": "-xmolv --long --modes --owners --mountpoints --vertical | listed+",
        "pathchk": "-pP --portability | pattern+",
        "lsattr": "-adlvp | listed*",
        "getfacl": "-acdestpn | listed+",
        "findmnt": """
            -lnDuvJrP -t,--types:names -o,--output:names --json --list --noheadings --df --real | listed?
        """,
        "swapon": "-s,--show?names@1 --bytes --noheadings | nothing+ |",
        "sysctl": "-nNaqe --values --names --all | setting*",
        "ipcs": "-amqstplcuh |",
        "sensors": "-ufjA |",
        "nvidia-smi": "%words -L -q -i:name --list-gpus --query-gpu:names --format:names |",
        "iostat mpstat": "-cdhkmxyztN -p?name -P:name |",
        "getent": "| =services|protocols|networks|rpc name*",
        "ldconfig": "-v -p,--print-cache@1 | nothing+ |",
        "whatis": "-lre -s:name | pattern+",
        "apropos": "-lrea -s:name | pattern+",
        # Without a number of rounds, it never ends.
        "top": """
            -bcHiS1 -n:few -d:few -o:name -u,-U:name -w:width -E:k|m|g|t|p|e -e:k|m|g|t|p &>-b &>-n |
        """,
        "command": "-v,-V@1 | nothing+ | name+",
        "printenv": "-0 --null | variable+",
        "rpm": "-q,--query@1 -ailfdcRs --all --info --list --last --requires --provides | nothing+ | text*",
        "pacman": "-Q@1 -deglimnoqstu | nothing+ | name*",
        "dpkg-query": "-lLsSWp --list --listfiles --status --search --show -f,--showformat:text | text*",
        "go": {
            "": "",
            "version": "|",
            "env": "-json | names*",
            "help": "| name*",
            "get": "!w !n -u -t -v | package*",
            "mod": {
                "": "",
                "init": "!w | package?",
                "tidy download verify": "!w !n -v |",
                "graph why": "!n | package*",
            },
        },
    },
    _GROUPS,
)

# What an interpreter does with a file, or a module of its own, without running the project's code.
CHECKS: Table = {
    "bash -n": "| read",
    "sh -n": "| read",
    "dash -n": "| read",
    "zsh -n": "| read",
    "ksh -n": "| read",
    "node --check": "| read",
    "php -l": "| read",
    "luac -p": "| read+",
    **{
        f"python{version} -m {module}": rules
        for version in ("", "3")
        for modules, rules in {
            "json.tool": """
                --sort-keys --no-ensure-ascii --compact --tab --no-indent --json-lines --indent:few | read? /
                !w read write
            """,
            "venv": """
                !w --system-site-packages --symlinks --copies --upgrade --without-pip --prompt:name
                --upgrade-deps!n | touched
            """,
            "py_compile": "!w -q | write+",
            "compileall": "!w -qfl | write*",
            "tabnanny": "-qv | read+",
            "ast dis tokenize": "| read",
            "calendar": "| whole? whole?",
            "site": "|",
            "this": "|",
            "zipfile": "-l,--list,-t,--test@1 | nothing+ | local",
            "tarfile": "-l,--list,-t,--test@1 -v | nothing+ | local",
        }.items()
        for module in modules.split()
    },
}
"""The first words of a command → how the others are read."""
