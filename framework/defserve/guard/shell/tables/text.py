"""Programs that show, search, sort and reshape text."""

from __future__ import annotations

from defserve.guard.shell.specs import Table, with_groups

_GROUPS = {
    "color": "--color,--colour?always|never|auto",
    "grep": """
        -EFGPiyvwxcHhnlLoqsaIbrzZTUu --extended-regexp --fixed-strings --basic-regexp --perl-regexp --ignore-case
        --no-ignore-case --invert-match --word-regexp --line-regexp --count --with-filename --no-filename
        --line-number --files-with-matches --files-without-match --only-matching --quiet --silent --no-messages --text
        --byte-offset --recursive --null-data --null --initial-tab --binary --line-buffered -V
        --no-group-separator --group-separator:char --label:text -e,--regexp:pattern@1 -f,--file:read@1
        -m,--max-count:number -A,--after-context:number -B,--before-context:number -C,--context:number -#
        --include:glob --exclude:glob --exclude-dir:glob --exclude-from:read -d,--directories:read|recurse|skip
        -D,--devices:read|skip --binary-files:binary|text|without-match +color | pattern read* | read*
    """,
    "checksum": """
        -bctwz --binary --check --tag --text --zero --ignore-missing --quiet --status --strict --warn
        -l,--length:number -a,--algorithm:name --base64 --raw --debug --untagged | read*
    """,
    "zcat": "-fqvLVhk --force --quiet --verbose | read*",
}

TEXT: Table = with_groups(
    {
        "cat": """
            -AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs
            --show-nonprinting | read*
        """,
        "head": "-qvz --quiet --silent --verbose --zero-terminated -n,--lines:number -c,--bytes:number -# | read*",
        "tail": """
            -qvrz --quiet --silent --verbose --zero-terminated -n,--lines:number -c,--bytes:number -b:number -# | read*
        """,
        "wc": "-clmLw --bytes --chars --lines --words --max-line-length --total:auto|always|only|never | read*",
        "tac": "-br -s,--separator:char --before --regex | read*",
        "rev": "-V0 --zero | read*",
        "nl": """
            -p -b,--body-numbering:pattern -d,--section-delimiter:char -f,--footer-numbering:pattern
            -h,--header-numbering:pattern -i,--line-increment:number -l,--join-blank-lines:number
            -n,--number-format:ln|rn|rz -s,--number-separator:char -v,--starting-line-number:number
            -w,--number-width:width --no-renumber | read*
        """,
        "cut": """
            -snz -b,--bytes:numbers -c,--characters:numbers -d,--delimiter:char -f,--fields:numbers --complement
            --only-delimited --output-delimiter:char --zero-terminated | read*
        """,
        "paste": "-sz -d,--delimiters:char --serial --zero-terminated | read*",
        "join": """
            -iz -a:number -e:char -j:number -o:name -t:char -v:number -1:number -2:number --ignore-case
            --check-order --nocheck-order --header --zero-terminated | read read
        """,
        "comm": "-123iz --check-order --nocheck-order --output-delimiter:char --total --zero-terminated | read read",
        "tr": "-cCdst --complement --delete --squeeze-repeats --truncate-set1 | pattern pattern?",
        "sort": """
            -bdfgiMhnRrVcCmsuz -k,--key:key -t,--field-separator:char -S,--buffer-size:memory --parallel:few
            -o,--output:write --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort
            --ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse
            --version-sort --sort:general-numeric|human-numeric|month|numeric|random|version
            --check?quiet|silent|diagnose-first --merge --stable --unique --zero-terminated --debug
            --batch-size:width | read*
        """,
        "uniq": """
            %first -cdDiuz --count --repeated --all-repeated?none|prepend|separate
            --group?separate|prepend|append|both -f,--skip-fields:number -s,--skip-chars:number
            -w,--check-chars:number --ignore-case --unique --zero-terminated -# | read? write?
        """,
        "shuf": """
            -rz -i,--input-range:range -n,--head-count:count -o,--output:write -e,--echo@1 --repeat
            --zero-terminated &-r,--repeat>-n,--head-count | read? | text*
        """,
        "tsort": "| read?",
        "fold": "-bs -w,--width:number --bytes --spaces -# | read*",
        "fmt": """
            -cstu -p,--prefix:char -w,--width:number -g,--goal:number --crown-margin --tagged-paragraph --split-only
            --uniform-spacing -# | read*
        """,
        "pr": """
            -acdfFjJmrtTv -h,--header:text -l,--length:width -n?columns-of -o,--indent:width -s?char -S?char
            -w,--width:width -W,--page-width:width -# | read*
        """,
        "expand unexpand": "-ai -t,--tabs:widths --initial --all --first-only | read*",
        "column": """
            -tnexdLJ -s,--separator:char -o,--output-separator:char -c,--output-width:width -N,--table-columns:names
            -H,--table-hide:names -R,--table-right:names -O,--table-order:names -E,--table-noextreme:names
            -W,--table-wrap:names -T,--table-truncate:names --table --json --fillrows --keep-empty-lines | read*
        """,
        "colrm": "| number? number?",
        "look": "-adf -t:char | pattern read?",
        "grep egrep fgrep": "+grep",
        "zgrep zegrep zfgrep": """
            -EFGPiyvwxcHhnlLoqsabI --ignore-case --count --line-number --word-regexp --invert-match --extended-regexp
            --fixed-strings --files-with-matches --only-matching --quiet -e,--regexp:pattern@1
            -A,--after-context:number -B,--before-context:number -C,--context:number -m,--max-count:number -# |
            pattern read+ | read+
        """,
        "rg": """
            -.nNiSswxvcloHIhqFPUaub0pV -# -e,--regexp:pattern@1 -f,--file:read@1 -g,--glob:glob --iglob:glob
            -t,--type:name -T,--type-not:name --type-add:text --type-clear:name --type-list@2 --files@2
            -A,--after-context:number -B,--before-context:number -C,--context:number -m,--max-count:number
            -M,--max-columns:number --max-columns-preview --max-depth,-d,--maxdepth:number --max-filesize:number
            -j,--threads:few -E,--encoding:name -r,--replace:pattern --sort:none|path|modified|accessed|created
            --sortr:none|path|modified|accessed|created --color:never|auto|always|ansi --colors:text
            --context-separator:char --field-match-separator:char --field-context-separator:char --path-separator:char
            --ignore-file:read --dfa-size-limit:number --regex-size-limit:number --engine:default|pcre2|auto
            --line-number --no-line-number --ignore-case --smart-case --case-sensitive --word-regexp --line-regexp
            --invert-match --count --count-matches --files-with-matches --files-without-match --only-matching
            --with-filename --no-filename --quiet --fixed-strings --no-fixed-strings --pcre2 --no-pcre2 --multiline
            --multiline-dotall --no-multiline --text --no-text --unrestricted --byte-offset --null --null-data
            --pretty --heading --no-heading --hidden --no-hidden --no-ignore --no-ignore-vcs --no-ignore-parent
            --no-ignore-global --no-ignore-dot --no-ignore-exclude --no-ignore-files --no-ignore-messages --ignore
            --no-config --no-messages --no-follow --one-file-system --column --no-column --trim --no-trim
            --vimgrep --json --stats --no-stats --passthru --passthrough --crlf --mmap --no-mmap --line-buffered
            --block-buffered --debug --trace --no-unicode --auto-hybrid-regex --glob-case-insensitive --no-require-git
            --include-zero --binary --no-binary --no-encoding --no-pre --no-search-zip --no-context-separator
            --pcre2-version | pattern read* | read* | walked*
        """,
        "diff": """
            -abBcdeEinNpqrstTuwyZ -CU:number --context,--unified?number -F,--show-function-line:pattern
            -I,--ignore-matching-lines:pattern -L,--label:text -S,--starting-file:name -W,--width:width
            -x,--exclude:glob -X,--exclude-from:read -D,--ifdef:name --text --ignore-space-change --ignore-blank-lines
            --minimal --ed --ignore-tab-expansion --ignore-case --rcs --new-file --unidirectional-new-file
            --show-c-function --brief --recursive --report-identical-files --expand-tabs --initial-tab
            --ignore-all-space --side-by-side --ignore-trailing-space --normal --left-column --suppress-common-lines
            --no-dereference --strip-trailing-cr --suppress-blank-empty --speed-large-files --no-ignore-file-name-case
            --ignore-file-name-case --tabsize:width --horizon-lines:number --line-format:text --old-line-format:text
            --new-line-format:text --unchanged-line-format:text --palette:text +color -# | read read
        """,
        "cmp": """
            -bls --print-bytes --verbose --quiet --silent -i,--ignore-initial:numbers -n,--bytes:number | read read?
            number? number?
        """,
        "sed gsed": """
            -nErsuzb -e,--expression:sed@1 -l,--line-length:number -i,--in-place?suffix!o --quiet --silent
            --regexp-extended --separate --unbuffered --null-data --posix --debug --sandbox --binary
            | sed read* | read*
        """,
        "awk gawk mawk nawk": """
            %leading -F,--field-separator:text -v,--assign:assignment --posix --traditional --re-interval | awk
            undashed*
        """,
        "jq": """
            -rcnsSeajMCRhV --raw-output --compact-output --null-input --slurp --sort-keys --exit-status --ascii-output
            --join-output --monochrome-output --color-output --raw-input --raw-output0 --tab --unbuffered --stream
            --stream-errors --seq --indent:few --arg:name+pattern --argjson:name+pattern --slurpfile:name+read
            --rawfile:name+read --args@1 --jsonargs@1 | jq undashed* | jq pattern*
        """,
        # Two programs have this name. For one of them, -s writes files.
        "yq": """
            -rPCMNejyYn -o,--output-format:name -p,--input-format:name -i,--inplace,--in-place!o --raw-output
            --prettyPrint --unwrapScalar --no-colors --colors --exit-status --null-input --yaml-output | yq read* /
            =e|eval yq read*
        """,
        "openssl": {
            "": "",
            "rand": "%words -hex -base64 -out:write | width",
            "version": "-a -v -d -p -b -o -f %words |",
            "dgst": """
                %words -sha1 -sha224 -sha256 -sha384 -sha512 -sha3-256 -sha3-512 -md5 -blake2b512 -blake2s256 -hex -r -c
                -binary | local*
            """,
            "sha1 sha256 sha384 sha512 md5": "%words -hex -r -c -binary | local*",
            # Not -out, -passin, -engine, -config. A name with a colon would be an address.
            "req": "%words -in:local -inform:name -noout -text -subject -pubkey -verify -modulus &>-in |",
            "crl": "%words -in:local -inform:name -noout -text -issuer -lastupdate -nextupdate -fingerprint &>-in |",
            "rsa ec pkey": """
                %words -in:local -inform:name -noout -text -pubin -pubout -check -modulus -text_pub -pubcheck &>-in |
            """,
            "verify": "%words -CAfile:local -untrusted:local -partial_chain -purpose:name -verbose | local+",
            "asn1parse": "%words -in:local -inform:name -i -dump -offset:number -length:number &>-in |",
            "base64": "%words -in:local -d -e -A &>-in |",
            "ciphers": "%words -v -V -s -tls1_2 -tls1_3 | names?",
            "x509": """
                %words -in:local -inform:name -noout -text -subject -issuer -dates -enddate -startdate -fingerprint
                -sha256 -sha1 -serial -pubkey -email -hash -modulus -checkend:number -ext:names -nameopt:names |
            """,
        },
        "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum b3sum cksum shasum": "+checksum",
        "md5": "-qrpn -s:text | read*",
        "base64 base32 basenc": """
            -diDn --decode --ignore-garbage -w,--wrap,-b:number -i:read -o,--output:write --base64 --base64url
            --base32 --base32hex --base16 --base2msbf --base2lsbf --z85 | read?
        """,
        "od": """
            -abcdfhilosxv -A,--address-radix:d|o|x|n -j,--skip-bytes:number -N,--read-bytes:number -S,--strings?number
            -t,--format:name -w,--width?width --output-duplicates --traditional --endian:big|little | read*
        """,
        "hexdump hd": """
            -bcCdovxX -e:printed -n,--length:number -s,--skip:number --no-squeezing --canonical
            --color?always|never|auto -L?always|never|auto | read*
        """,
        "xxd": """
            %words %first -a -b -C -d -e -E -h -i -p -ps -plain -u -v -autoskip -bits -include -postscript -uppercase
            -c,-cols:number -g,-groupsize:number -l,-len:number -n,-name:name -o:number -s,-seek:number
            -R:always|never|auto | read? write?
        """,
        "strings": """
            -afwdhvV -n,--bytes:number -o -t,--radix:d|o|x -e,--encoding:s|S|b|l|B|L --all --print-file-name
            --include-all-whitespace --data -s,--output-separator:char -U:default|locale|escape|hex|highlight|invalid
            -# | object*
        """,
        "iconv": """
            -clsV -f,--from-code:charset -t,--to-code:charset -o,--output:write --list --silent --verbose | read*
        """,
        "zcat gzcat bzcat xzcat zstdcat lzcat": "+zcat",
    },
    _GROUPS,
)
