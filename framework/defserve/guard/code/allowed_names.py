"""Which modules and names judged code may use, at which level (MGP §7.2). All in tables, for readers and tests.

The jailed child imports this file, so it imports little.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Literal

CodeLevel = Literal["unrestricted", "standard", "strict", "readonly"]
RestrictedLevel = Literal["strict", "readonly"]
"""The levels at which RestrictedPython compiles the code."""


# -- Which identifiers judged code may use: tables and predicates.
#
# The jailed child imports this file, so it imports little.


def words(text: str) -> frozenset[str]:
    """A table of names, written as one text."""
    return frozenset(text.split())


# Any mention is refused, called or not.
BLOCKED_BUILTINS = words("eval exec compile __import__ globals locals vars breakpoint help __build_class__ __loader__")
STRICT_BUILTINS = BLOCKED_BUILTINS | words(
    "open input type super setattr delattr dir memoryview exit quit copyright credits license aiter anext"
    " BaseException SystemExit KeyboardInterrupt GeneratorExit BaseExceptionGroup ExceptionGroup"
)

# May only be called directly, with a literal as the name or mode.
BY_NAME = words("getattr hasattr setattr delattr")

FRAMES = words(
    "gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await f_back f_builtins"
    " f_code f_generator f_globals f_locals f_trace tb_frame tb_next co_code co_consts func_globals func_code"
    " _evaluate _getframe _current_frames evaluate_bound evaluate_constraints evaluate_default evaluate_value"
    " evaluate_forward_ref"
)
READABLE = words("__name__ __doc__ __qualname__ __version__")
MODULE_NAMES = words("__all__ __version__ __author__ __license__ __copyright__ __email__ __date__ __credits__")
METHODS = frozenset(
    f"__{name}__"
    for name in (
        "init new del str repr bytes format hash bool eq ne lt le gt ge len iter next reversed contains getitem setitem"
        " delitem missing call enter exit aenter aexit aiter anext await add sub mul matmul truediv floordiv mod divmod"
        " pow lshift rshift and or xor radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand"
        " rxor ror iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior neg pos abs invert"
        " int float complex index round trunc floor ceil getattr getattribute setattr delattr dir get set delete"
        " set_name init_subclass class_getitem post_init copy deepcopy sizeof instancecheck subclasscheck length_hint"
        " prepare subclasshook buffer"
    ).split()
)
CLASS_NAMES = METHODS | words("__slots__ __doc__ __hash__ __annotations__")
SUPER_METHODS = METHODS - words("__getattribute__ __getattr__ __setattr__ __delattr__ __del__ __dir__ __subclasshook__")

# What a strict program may define: more than RestrictedPython allows, but only methods that read and compute.
STRICT_METHODS = words(
    "__init__ __contains__ __lt__ __le__ __eq__ __ne__ __gt__ __ge__ __str__ __repr__ __len__ __iter__ __next__"
    " __hash__ __bool__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__"
    " __neg__ __abs__ __int__ __float__ __getitem__ __post_init__"
)

# Methods that change their object.
MUTATORS = words(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard difference_update"
    " intersection_update symmetric_difference_update appendleft extendleft popleft rotate move_to_end subtract"
    " write writelines truncate write_text write_bytes unlink rename rmdir mkdir touch seed setstate send throw"
    " frombytes fromlist byteswap commit execute executemany put put_nowait set_result"
)

_HOOK = re.compile(r"_[^_].*_\Z|_print\Z|_tmp\d*\Z|.*__roles__\Z", re.DOTALL)
DUNDER_TEXT = re.compile(r"__(?!main__|init__|name__)[A-Za-z][A-Za-z0-9_]*__")


def is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_hook(name: str) -> bool:
    """Whether the name has the shape of a RestrictedPython hook (`_getattr_`), which no program may touch."""
    return name.startswith("_") and not name.startswith("__") and _HOOK.match(name) is not None


def is_private(name: str) -> bool:
    """One leading underscore, and no hook."""
    return name.startswith("_") and name != "_" and not name.startswith("__") and not is_hook(name)


# -- Which modules judged code may import, and which of their names. All in tables, so that readers and tests see it
# all.
#
# A module without an export table may give out `sys` or `os` by a public attribute. So a standard-library module is
# either in a table or dangerous. The jailed child imports this file, so it imports little.


# What both strict and standard code may import. Nothing here reads files, starts processes, evaluates text,
# walks attributes by name, or changes state that outlives the run (hence no `random.seed`).
EXPORTS: Mapping[str, frozenset[str]] = {
    "__future__": words("annotations division generator_stop"),
    "abc": words("ABC abstractmethod"),
    "array": words("array typecodes"),
    "base64": words(
        "b64encode b64decode urlsafe_b64encode urlsafe_b64decode standard_b64encode standard_b64decode b32encode"
        " b32decode b16encode b16decode a85encode a85decode b85encode b85decode"
    ),
    "binascii": words("hexlify unhexlify crc32 a2b_hex b2a_hex a2b_base64 b2a_base64 Error"),
    "bisect": words("bisect bisect_left bisect_right insort insort_left insort_right"),
    "calendar": words(
        "isleap leapdays monthrange monthcalendar weekday month_name month_abbr day_name day_abbr Calendar TextCalendar"
        " month calendar timegm MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY"
    ),
    "cmath": words(
        "acos acosh asin asinh atan atanh cos cosh exp inf infj isclose isfinite isinf isnan log log10 nan nanj phase"
        " pi e tau polar rect sin sinh sqrt tan tanh"
    ),
    "collections": words("Counter OrderedDict defaultdict deque namedtuple ChainMap UserDict UserList UserString"),
    "collections.abc": words(
        "Iterable Iterator Generator Sequence MutableSequence Mapping MutableMapping Set MutableSet Callable Hashable"
        " Sized Container Collection Reversible KeysView ItemsView ValuesView Awaitable Coroutine AsyncIterator"
        " AsyncIterable AsyncGenerator ByteString Buffer"
    ),
    "colorsys": words("rgb_to_hsv hsv_to_rgb rgb_to_hls hls_to_rgb rgb_to_yiq yiq_to_rgb"),
    "contextlib": words("contextmanager suppress closing nullcontext ExitStack"),
    "copy": words("copy deepcopy"),
    "csv": words(
        "reader writer DictReader DictWriter Error QUOTE_ALL QUOTE_MINIMAL QUOTE_NONNUMERIC QUOTE_NONE excel excel_tab"
    ),
    "dataclasses": words("dataclass field fields asdict astuple replace is_dataclass FrozenInstanceError KW_ONLY"),
    "datetime": words("date datetime time timedelta timezone tzinfo UTC MINYEAR MAXYEAR"),
    "decimal": words(
        "Decimal Context getcontext localcontext InvalidOperation DivisionByZero Overflow Underflow Inexact Rounded"
        " DecimalException ROUND_HALF_UP ROUND_HALF_EVEN ROUND_HALF_DOWN ROUND_DOWN ROUND_UP ROUND_CEILING ROUND_FLOOR"
        " ROUND_05UP"
    ),
    "difflib": words("SequenceMatcher get_close_matches ndiff unified_diff context_diff Differ"),
    "enum": words("Enum IntEnum StrEnum Flag IntFlag auto unique"),
    "fractions": words("Fraction"),
    "functools": words("reduce partial partialmethod lru_cache cache cached_property wraps total_ordering cmp_to_key"),
    "graphlib": words("TopologicalSorter CycleError"),
    "hashlib": words(
        "md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 blake2b blake2s new pbkdf2_hmac"
        " algorithms_available algorithms_guaranteed"
    ),
    "heapq": words("heappush heappop heapify heappushpop heapreplace nlargest nsmallest merge"),
    "hmac": words("new digest compare_digest HMAC"),
    "html": words("escape unescape"),
    "io": words("StringIO BytesIO"),
    "ipaddress": words(
        "ip_address ip_network ip_interface IPv4Address IPv6Address IPv4Network IPv6Network AddressValueError"
        " NetmaskValueError collapse_addresses summarize_address_range"
    ),
    "itertools": words(
        "accumulate batched chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse"
        " groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest"
    ),
    "json": words("dumps loads dump load JSONDecodeError JSONEncoder JSONDecoder"),
    "math": words(
        "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp exp2 expm1"
        " fabs factorial floor fma fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm ldexp"
        " lgamma log log10 log1p log2 modf nan nextafter perm pi pow prod radians remainder sin sinh sqrt sumprod tan"
        " tanh tau trunc ulp"
    ),
    "numbers": words("Number Complex Real Rational Integral"),
    "pprint": words("pprint pformat pp"),
    "random": words(
        "Random random randint randrange uniform choice choices sample shuffle gauss normalvariate triangular"
        " betavariate expovariate gammavariate lognormvariate paretovariate weibullvariate vonmisesvariate getrandbits"
        " randbytes binomialvariate"
    ),
    "re": words(
        "compile match fullmatch search findall finditer sub subn split escape error PatternError Pattern Match purge A"
        " ASCII I IGNORECASE M MULTILINE S DOTALL X VERBOSE U UNICODE L LOCALE NOFLAG RegexFlag"
    ),
    "secrets": words("token_hex token_bytes token_urlsafe choice randbelow randbits compare_digest"),
    "statistics": words(
        "mean fmean median median_low median_high median_grouped mode multimode stdev pstdev variance pvariance"
        " quantiles correlation covariance linear_regression harmonic_mean geometric_mean NormalDist kde"
        " StatisticsError"
    ),
    "string": words(
        "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation printable whitespace"
        " capwords Template"
    ),
    "struct": words("pack unpack calcsize pack_into unpack_from iter_unpack Struct error"),
    "textwrap": words("wrap fill dedent indent shorten TextWrapper"),
    "time": words(
        "time time_ns sleep perf_counter perf_counter_ns monotonic monotonic_ns process_time strftime strptime gmtime"
        " localtime mktime ctime asctime struct_time timezone"
    ),
    "tomllib": words("loads TOMLDecodeError"),
    "types": words("SimpleNamespace NoneType"),
    # No `get_type_hints`, `ForwardRef`, `get_args`: they evaluate strings, or lead to what does.
    "typing": words(
        "Any AnyStr Annotated Callable ClassVar Concatenate Final Generic Literal LiteralString NamedTuple Never"
        " NewType NoReturn NotRequired Optional ParamSpec Protocol Required Self SupportsFloat SupportsIndex"
        " SupportsInt SupportsAbs Text Tuple Type TypeAlias TypeGuard TypeVar TypeVarTuple TypedDict Union Unpack"
        " List Dict Set FrozenSet Deque DefaultDict OrderedDict Counter ChainMap Iterable Iterator Generator Sequence"
        " MutableSequence Mapping MutableMapping Collection Container Hashable Sized Reversible Awaitable Coroutine"
        " AsyncIterator AsyncIterable AsyncGenerator ContextManager AsyncContextManager Pattern Match IO TextIO"
        " BinaryIO TYPE_CHECKING cast overload final override runtime_checkable assert_never assert_type reveal_type"
    ),
    "unicodedata": words(
        "normalize category name lookup numeric decimal digit bidirectional combining east_asian_width mirrored"
        " is_normalized unidata_version"
    ),
    "urllib.parse": words(
        "urlparse urlunparse urlsplit urlunsplit urlencode urljoin quote quote_plus unquote unquote_plus parse_qs"
        " parse_qsl urldefrag ParseResult SplitResult"
    ),
    "uuid": words("UUID uuid3 uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL NAMESPACE_OID NAMESPACE_X500"),
    "zlib": words("compress decompress crc32 adler32 error"),
    # Dangerous modules, of which only these names may be imported, and only by `from`.
    "operator": words(
        "itemgetter add sub mul truediv floordiv mod neg pos pow lt le eq ne gt ge and_ or_ xor not_ contains concat"
        " countOf indexOf index abs inv invert truth is_ is_not matmul getitem lshift rshift"
    ),
    "pathlib": words("PurePath PurePosixPath PureWindowsPath"),
    "sys": words("maxsize float_info int_info"),
}

# What standard code may import as well: harmless only because the jail, not RestrictedPython, holds the program.
LOOSE_EXPORTS: Mapping[str, frozenset[str]] = {
    "argparse": words("ArgumentParser Namespace ArgumentError ArgumentTypeError RawDescriptionHelpFormatter"),
    "ast": words("literal_eval"),
    "asyncio": words(
        "run gather sleep create_task wait wait_for as_completed shield timeout Queue PriorityQueue LifoQueue Lock"
        " Event Semaphore BoundedSemaphore Condition TaskGroup Task Future TimeoutError CancelledError QueueEmpty"
        " QueueFull iscoroutinefunction iscoroutine current_task all_tasks to_thread get_running_loop Runner"
        " ALL_COMPLETED FIRST_COMPLETED FIRST_EXCEPTION InvalidStateError"
    ),
    "concurrent.futures": words(
        "ThreadPoolExecutor as_completed wait Future TimeoutError ALL_COMPLETED FIRST_COMPLETED"
    ),
    "abc": EXPORTS["abc"] | {"ABCMeta"},
    "types": EXPORTS["types"] | {"MappingProxyType", "TracebackType"},
    "contextlib": EXPORTS["contextlib"] | words("asynccontextmanager AsyncExitStack aclosing"),
    "html.parser": words("HTMLParser"),
    "logging": words(
        "getLogger basicConfig debug info warning error exception critical log Logger NullHandler StreamHandler"
        " Formatter DEBUG INFO WARNING ERROR CRITICAL NOTSET getLevelName"
    ),
    "platform": words("python_version python_implementation"),
    "queue": words("Queue LifoQueue PriorityQueue SimpleQueue Empty Full"),
    "sched": words("scheduler"),
    "shlex": words("split quote join"),
    "threading": words(
        "Thread Lock RLock Event Semaphore BoundedSemaphore Condition Timer Barrier local current_thread get_ident"
        " active_count"
    ),
    "traceback": words("format_exc print_exc format_exception format_exception_only"),
    "unittest": words("TestCase main skip skipIf skipUnless expectedFailure TestSuite TextTestRunner"),
    "warnings": words("warn catch_warnings simplefilter filterwarnings"),
    "weakref": words("ref WeakValueDictionary WeakKeyDictionary WeakSet proxy"),
    "xml.etree.ElementTree": words("fromstring XML Element SubElement tostring ParseError Comment indent"),
    "yaml": words("safe_load safe_load_all safe_dump safe_dump_all YAMLError dump"),
    "zoneinfo": words("ZoneInfo ZoneInfoNotFoundError available_timezones"),
}

# Named in hints. Every other standard-library module without a table is refused too.
DANGEROUS = frozenset(
    words(
        "os sys subprocess shutil socket ctypes importlib builtins pickle marshal shelve inspect operator pathlib"
        " signal multiprocessing pty fcntl resource gc code codeop codecs runpy timeit tempfile glob http ftplib"
        " smtplib sqlite3 webbrowser pdb posix nt"
    )
    # Only in older standard libraries, or in none.
    | words(
        "imp pipes crypt distutils asyncore asynchat smtpd telnetlib nntplib cgi cgitb commands popen2 cffi psutil"
        " pexpect ptyprocess paramiko fabric invoke sh plumbum dill cloudpickle joblib jsonpickle docker win32api"
        " win32com pip setuptools pkg_resources jinja2 mako numexpr RestrictedPython defserve"
    )
)

_FROM_ONLY = words("operator pathlib sys")

# What may not be taken from a module without a table (third-party, at standard).
REACHES = frozenset(
    words(
        "os sys subprocess builtins importlib ctypes ctypeslib f2py socket shutil pickle inspect codecs posix"
        " multiprocessing pathlib tempfile runpy marshal gc eval exec read_pickle to_pickle sympify parse_expr lambdify"
        " popen system memmap fromfile tofile"
    )
)

# Modules whose table holds everything that `from m import *` brings.
STARRED = words("math cmath")

# Keywords that turn a harmless call into one that writes.
WRITING_KEYWORDS: Mapping[str, frozenset[str]] = {"logging.basicConfig": words("filename filemode handlers stream")}

# Functions that import or call what their other arguments name: called directly, with these keywords and nothing else.
NAMED_ONLY: Mapping[str, frozenset[str]] = {"unittest.main": words("argv buffer catchbreak exit failfast verbosity")}

# What the objects of a module give out although its table does not: modules, files, processes, connections. In a
# program that imports the module, no attribute may have such a name. Tests look for others by walking through the
# objects.
EXPOSED: Mapping[str, frozenset[str]] = {
    "argparse": words("fromfile_prefix_chars convert_arg_line_to_args"),
    "asyncio": words(
        "subprocess_exec subprocess_shell create_connection create_server create_datagram_endpoint"
        " create_unix_connection create_unix_server connect_accepted_socket connect_read_pipe connect_write_pipe"
        " sendfile sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendfile"
        " sock_sendto getaddrinfo getnameinfo add_reader add_writer add_signal_handler start_tls"
    ),
    "pathlib": words("parser pathmod _flavour"),
    "unittest": words("module testLoader loadTestsFromName loadTestsFromNames createTests runTests parseArgs"),
    "warnings": words("_module"),
}

# A module that was reached on another way leads on by these names.
HIDDEN_MODULES = words("os sys subprocess builtins importlib posix nt ctypes genericpath posixpath ntpath")


def module_root(module: str) -> str:
    return module.partition(".")[0]


def find_exports(module: str, strict: bool) -> frozenset[str] | None:
    """What a module gives out, or None if it has no table at this level."""
    if not strict and module in LOOSE_EXPORTS:
        return LOOSE_EXPORTS[module]
    return EXPORTS.get(module)


def is_dangerous_module(module: str, strict: bool = False) -> bool:
    """Whether a module is refused even if an allow-list names it. Names in its table may still be imported."""
    if module in _FROM_ONLY:
        return True
    if find_exports(module, strict) is not None:
        return False
    top = module_root(module)
    return top in DANGEROUS or top.startswith("_") or top in sys.stdlib_module_names
