"""Programs that print, compute, and tell about the machine, its users and processes."""

from __future__ import annotations

from defserve.guard.shell.specs import Table

SYSTEM: Table = {
    "echo expr true false": "%plain | pattern*",
    "printf": "%plain | printed pattern*",
    "factor": "| factored*",
    # Busybox counts for ever in steps of nothing. In small steps, only a short way.
    "seq": """
        %negative -w,--equal-width -s,--separator:char -f,--format:printed | whole whole? / whole step whole /
        small small? / small small-step small
    """,
    "numfmt": """
        -z -d,--delimiter:char --field:numbers --format:printed --from:none|auto|si|iec|iec-i
        --to:none|auto|si|iec|iec-i --from-unit:number --to-unit:number --grouping --header?number
        --invalid:abort|fail|warn|ignore --padding:width
        --round:up|down|from-zero|towards-zero|nearest --suffix:name --debug | number*
    """,
    "sleep": "| pause",
    "date": """
        -uRnj -d,--date:when -I,--iso-8601?date|hours|minutes|seconds|ns --rfc-3339:date|seconds|ns --rfc-email --utc
        --universal --debug --resolution -r,--reference:listed -v:pattern | format?
    """,
    "cal ncal": """
        -1369hjmsywYbeMNopS3 -n,--months:few -A:few -B:few -C  -d:name -H:name --one --three --sunday
        --monday --julian --year --twelve --week?number --color?always|never|auto | name*
    """,
    "hostname": "-aAdfiIsyv --alias --all-fqdns --all-ip-addresses --domain --fqdn --long --ip-address --short |",
    "uname": """
        -asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor
        --hardware-platform --operating-system |
    """,
    "arch nproc whoami users logname hostid tty": "-s --all --ignore:number --silent --quiet |",
    "uptime": "-psrc --pretty --since --raw |",
    "id": "-agGnruzpZ --group --groups --name --real --user --zero --context | name*",
    "groups": "| name*",
    "who": """
        -abdHlmpqrstTuw --all --boot --dead --heading --login --process --count --runlevel --short --time --users
        --mesg --writable --message | name? name?
    """,
    "w": "-hsfouiVp --no-header --short --from --old-style --ip-addr --pids | name?",
    "last": """
        -aFiRwx -# -n,--limit:number -s,--since:text -t,--until:text -p,--present:text --fulltimes --hostlast
        --nohostname --system --time-format:name | name*
    """,
    "free": """
        -bkmghltvwL --bytes --kilo --mega --giga --tera --kibi --mebi --gibi --human --si --lohi --total --wide --line
        -c,--count:few -s,--seconds:few &-s,--seconds>-c,--count |
    """,
    "vmstat": """
        -afmnsdDtwy -p,--partition:name -S,--unit:k|K|m|M --active --forks --slabs --one-header --stats --disk
        --disk-sum --timestamp --wide | / few few
    """,
    "pstree": """
        -aAclgGhnNpsStTuUZ -H:pid --arguments --ascii --compact-not --show-pids --long --numeric-sort | name?
    """,
    "pgrep": """
        -aAcfilnovwx -d,--delimiter:char -u,--euid:names -U,--uid:names -g,--pgroup:names -G,--group:names
        -P,--parent:numbers -s,--session:names -t,--terminal:names -r,--runstates:name --list-name --list-full --full
        --exact --newest --oldest --count --inverse --ignore-case --lightweight | pattern?
    """,
    "pidof": "-csxqtz -o:name -S:char | name+",
    # If the first reading fails, ps reads its words without their dashes, and then `e` shows environments. So `-e`
    # comes only with options that never fail.
    "ps": """
        %apart -AacdFfHjLlmNVwyZM -T^some -e@1^all -aux.,-auxw.,-auxww.,-ax.,-axu.,-axf.,-axw.,-axww.^second -oO:columns
        --format:columns -p,--pid,--ppid,-q,--quick-pid:numbers^some
        -u,-U,-g,-G,-t,-C,-s,--user,--User,--group,--Group,--tty,--sid:names^some
        --sort:columns -k:columns --forest --headers --no-headers --no-heading
        --cols,--columns,--width,--rows,--lines:number --cumulative --info | letters? / letters columns | =f|w|ww?
    """,
    # Only the names of the signals: another process belongs to somebody else.
    "kill": "-l,-L,--list@1 | nothing+ | signal?",
    "which": "-aspi --all --skip-dot --skip-tilde --show-dot | name+",
    "type": "-atPpf | name+",
    "whereis": "-bmsul | name+",
    "lscpu": """
        -abcCeEpJxyBV --all --online --offline --json --hex --physical --bytes --parse?names --extended?names
        --caches?names |
    """,
    "lsblk": """
        -abdDfhiJlmnNOpPrsStTVzAM -o,--output:names -I,--include:numbers -e,--exclude:numbers -x,--sort:name --all
        --bytes --nodeps --fs --json --list --perms --noheadings --output-all --paths --pairs --raw --inverse
        --topology --tree?name --ascii |
    """,
    "lsmod": "|",
    "lsusb": "-vtV -s:name -d:name --verbose --tree |",
    "lspci": "-vktnbmDx -s:name -d:name |",
    "lsb_release": "-vidrcas --version --id --description --release --codename --all --short |",
    "dmesg": """
        -HTtxkuLrPdeJ -l,--level:names -f,--facility:names --human --ctime --notime --decode --kernel --userspace
        --color?always|never|auto --nopager --since:text --until:text --time-format:name --reltime |
    """,
    "lsof": """
        -bChlnNoPRtUVwX -i?address@1 -s?name -F?name -T?name | object+ | address?
    """,
    "ss": """
        -tulnpaosemihxwd0460STHBOZzbMQ -f,--family:name -A,--query,--socket:names --tcp --udp --listening --numeric
        --processes --all --options --summary --extended --memory --info --raw --unix --ipv4 --ipv6 --no-header
        --oneline | socket*
    """,
    # Without -n, it looks up the names of addresses, unless it only counts.
    "netstat": """
        -tulpaeoMNCFvWLx46 -n,--numeric@1 -s,-i,--statistics,--interfaces@1^count -r,--route^route -g^groups -f:name
        -I:name --tcp --udp --listening --programs --all --extend --timers --wide | !n |
    """,
    "locale": "-ackV --all-locales --category-name --keyword-name --verbose | name*",
    "getconf": "-a | name? / name listed",
    "ip": {
        "": "-4,-6,-br,-brief,-c,-color,-d,-details,-o,-oneline,-s,-statistics,-j,-json,-p,-pretty %words",
        "a addr address link l route r neigh n rule": {"": "%alone", "show list ls": "| name*", "get": "| address"},
    },
    "ifconfig": "-as | name?",
    "route": "-ne -nee. |",
}
