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


def split_names(text: str) -> frozenset[str]:
    """A table of names, written as one text."""
    return frozenset(text.split())


# Any mention is refused, called or not. What tells the license reads files, whose names can be changed.
BLOCKED_BUILTINS = split_names(
    "eval exec compile __import__ globals locals vars breakpoint help __build_class__ __loader__ copyright credits"
    " license"
)
STRICT_BUILTINS = BLOCKED_BUILTINS | split_names(
    "open input type super setattr delattr dir memoryview exit quit aiter anext"
    " BaseException SystemExit KeyboardInterrupt GeneratorExit BaseExceptionGroup ExceptionGroup"
)

# May only be called directly, with a literal as the name or mode.
ATTRIBUTE_BUILTINS = split_names("getattr hasattr setattr delattr")

FRAME_ATTRIBUTES = split_names(
    "gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await f_back f_builtins"
    " f_code f_generator f_globals f_locals f_trace tb_frame tb_next co_code co_consts func_globals func_code"
    " _evaluate _getframe _current_frames evaluate_bound evaluate_constraints evaluate_default evaluate_value"
    " evaluate_forward_ref"
)
READABLE_DUNDERS = split_names("__name__ __doc__ __qualname__ __version__")
MODULE_DUNDERS = split_names("__all__ __version__ __author__ __license__ __copyright__ __email__ __date__ __credits__")
SPECIAL_METHODS = frozenset(
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
# Not `__annotations__`: `dataclass` makes code out of the names in it.
CLASS_DUNDERS = SPECIAL_METHODS | split_names("__slots__ __doc__ __hash__")
SUPER_METHODS = SPECIAL_METHODS - split_names(
    "__getattribute__ __getattr__ __setattr__ __delattr__ __del__ __dir__ __subclasshook__"
)

# What a strict program may define: more than RestrictedPython allows, but only methods that read and compute.
STRICT_SPECIAL_METHODS = split_names(
    "__init__ __contains__ __lt__ __le__ __eq__ __ne__ __gt__ __ge__ __str__ __repr__ __len__ __iter__ __next__"
    " __hash__ __bool__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__"
    " __neg__ __abs__ __int__ __float__ __getitem__ __post_init__"
)

# Public, though they begin with an underscore: a named tuple has fields of any other name.
NAMED_TUPLE_NAMES = split_names("_asdict _field_defaults _fields _make _replace")

# Methods that change their object.
MUTATING_METHODS = split_names(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard difference_update"
    " intersection_update symmetric_difference_update appendleft extendleft popleft rotate move_to_end subtract"
    " write writelines truncate write_text write_bytes unlink rename rmdir mkdir touch seed setstate send throw"
    " frombytes fromlist byteswap commit execute executemany put put_nowait set_result"
)

# Methods that change their first argument.
ARGUMENT_MUTATING_METHODS = split_names("shuffle pack_into readinto readinto1")

_HOOK = re.compile(r"_[^_].*_\Z|_print\Z|_tmp\d*\Z|.*__roles__\Z", re.DOTALL)
DUNDER_PATTERN = re.compile(r"__(?!main__|init__|name__)[A-Za-z][A-Za-z0-9_]*__")


def is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_restricted_python_hook(name: str) -> bool:
    """Whether the name has the shape of a RestrictedPython hook (`_getattr_`), which no program may touch."""
    return name.startswith("_") and not name.startswith("__") and _HOOK.match(name) is not None


def is_private_name(name: str) -> bool:
    """One leading underscore, and no hook."""
    return name.startswith("_") and name != "_" and not name.startswith("__") and not is_restricted_python_hook(name)


# -- Which modules judged code may import, and which of their names. All in tables, so that readers and tests see it
# all.
#
# A module without an export table may give out `sys` or `os` by a public attribute. So a standard-library module is
# either in a table or dangerous. The jailed child imports this file, so it imports little.


# What both strict and standard code may import. Nothing here reads files, starts processes, evaluates text,
# walks attributes by name, or changes state that outlives the run (hence no `random.seed`).
SAFE_MODULE_EXPORTS: Mapping[str, frozenset[str]] = {
    "__future__": split_names("annotations division generator_stop"),
    "abc": split_names("ABC abstractmethod"),
    "array": split_names("array typecodes"),
    "base64": split_names(
        "b64encode b64decode urlsafe_b64encode urlsafe_b64decode standard_b64encode standard_b64decode b32encode"
        " b32decode b16encode b16decode a85encode a85decode b85encode b85decode"
    ),
    "binascii": split_names("hexlify unhexlify crc32 a2b_hex b2a_hex a2b_base64 b2a_base64 Error"),
    "bisect": split_names("bisect bisect_left bisect_right insort insort_left insort_right"),
    "calendar": split_names(
        "isleap leapdays monthrange monthcalendar weekday month_name month_abbr day_name day_abbr Calendar TextCalendar"
        " month calendar timegm MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY"
    ),
    "cmath": split_names(
        "acos acosh asin asinh atan atanh cos cosh exp inf infj isclose isfinite isinf isnan log log10 nan nanj phase"
        " pi e tau polar rect sin sinh sqrt tan tanh"
    ),
    "collections": split_names(
        "Counter OrderedDict defaultdict deque namedtuple ChainMap UserDict UserList UserString"
    ),
    "collections.abc": split_names(
        "Iterable Iterator Generator Sequence MutableSequence Mapping MutableMapping Set MutableSet Callable Hashable"
        " Sized Container Collection Reversible KeysView ItemsView ValuesView Awaitable Coroutine AsyncIterator"
        " AsyncIterable AsyncGenerator ByteString Buffer"
    ),
    "colorsys": split_names("rgb_to_hsv hsv_to_rgb rgb_to_hls hls_to_rgb rgb_to_yiq yiq_to_rgb"),
    "contextlib": split_names("contextmanager suppress closing nullcontext ExitStack"),
    "copy": split_names("copy deepcopy"),
    "csv": split_names(
        "reader writer DictReader DictWriter Error QUOTE_ALL QUOTE_MINIMAL QUOTE_NONNUMERIC QUOTE_NONE excel excel_tab"
    ),
    "dataclasses": split_names(
        "dataclass field fields asdict astuple replace is_dataclass FrozenInstanceError KW_ONLY"
    ),
    "datetime": split_names("date datetime time timedelta timezone tzinfo UTC MINYEAR MAXYEAR"),
    "decimal": split_names(
        "Decimal Context getcontext localcontext InvalidOperation DivisionByZero Overflow Underflow Inexact Rounded"
        " DecimalException ROUND_HALF_UP ROUND_HALF_EVEN ROUND_HALF_DOWN ROUND_DOWN ROUND_UP ROUND_CEILING ROUND_FLOOR"
        " ROUND_05UP"
    ),
    "difflib": split_names("SequenceMatcher get_close_matches ndiff unified_diff context_diff Differ"),
    "enum": split_names("Enum IntEnum StrEnum Flag IntFlag auto unique"),
    "fractions": split_names("Fraction"),
    "functools": split_names(
        "reduce partial partialmethod lru_cache cache cached_property wraps total_ordering cmp_to_key"
    ),
    "graphlib": split_names("TopologicalSorter CycleError"),
    "hashlib": split_names(
        "md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 blake2b blake2s new pbkdf2_hmac"
        " algorithms_available algorithms_guaranteed"
    ),
    "heapq": split_names("heappush heappop heapify heappushpop heapreplace nlargest nsmallest merge"),
    "hmac": split_names("new digest compare_digest HMAC"),
    "html": split_names("escape unescape"),
    "io": split_names("StringIO BytesIO"),
    "ipaddress": split_names(
        "ip_address ip_network ip_interface IPv4Address IPv6Address IPv4Network IPv6Network AddressValueError"
        " NetmaskValueError collapse_addresses summarize_address_range"
    ),
    "itertools": split_names(
        "accumulate batched chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse"
        " groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest"
    ),
    "json": split_names("dumps loads dump load JSONDecodeError JSONEncoder JSONDecoder"),
    "math": split_names(
        "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp exp2 expm1"
        " fabs factorial floor fma fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm ldexp"
        " lgamma log log10 log1p log2 modf nan nextafter perm pi pow prod radians remainder sin sinh sqrt sumprod tan"
        " tanh tau trunc ulp"
    ),
    "numbers": split_names("Number Complex Real Rational Integral"),
    "pprint": split_names("pprint pformat pp"),
    "random": split_names(
        "Random random randint randrange uniform choice choices sample shuffle gauss normalvariate triangular"
        " betavariate expovariate gammavariate lognormvariate paretovariate weibullvariate vonmisesvariate getrandbits"
        " randbytes binomialvariate"
    ),
    "re": split_names(
        "compile match fullmatch search findall finditer sub subn split escape error PatternError Pattern Match purge A"
        " ASCII I IGNORECASE M MULTILINE S DOTALL X VERBOSE U UNICODE L LOCALE NOFLAG RegexFlag"
    ),
    "secrets": split_names("token_hex token_bytes token_urlsafe choice randbelow randbits compare_digest"),
    "statistics": split_names(
        "mean fmean median median_low median_high median_grouped mode multimode stdev pstdev variance pvariance"
        " quantiles correlation covariance linear_regression harmonic_mean geometric_mean NormalDist kde"
        " StatisticsError"
    ),
    "string": split_names(
        "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation printable whitespace"
        " capwords Template"
    ),
    "struct": split_names("pack unpack calcsize pack_into unpack_from iter_unpack Struct error"),
    "textwrap": split_names("wrap fill dedent indent shorten TextWrapper"),
    "time": split_names(
        "time time_ns sleep perf_counter perf_counter_ns monotonic monotonic_ns process_time strftime strptime gmtime"
        " localtime mktime ctime asctime struct_time timezone"
    ),
    "tomllib": split_names("loads TOMLDecodeError"),
    "types": split_names("SimpleNamespace NoneType"),
    # No `get_type_hints`, `ForwardRef`, `get_args`: they evaluate strings, or lead to what does.
    "typing": split_names(
        "Any AnyStr Annotated Callable ClassVar Concatenate Final Generic Literal LiteralString NamedTuple Never"
        " NewType NoReturn NotRequired Optional ParamSpec Protocol Required Self SupportsFloat SupportsIndex"
        " SupportsInt SupportsAbs Text Tuple Type TypeAlias TypeGuard TypeVar TypeVarTuple TypedDict Union Unpack"
        " List Dict Set FrozenSet Deque DefaultDict OrderedDict Counter ChainMap Iterable Iterator Generator Sequence"
        " MutableSequence Mapping MutableMapping Collection Container Hashable Sized Reversible Awaitable Coroutine"
        " AsyncIterator AsyncIterable AsyncGenerator ContextManager AsyncContextManager Pattern Match IO TextIO"
        " BinaryIO TYPE_CHECKING cast overload final override runtime_checkable assert_never assert_type reveal_type"
    ),
    "unicodedata": split_names(
        "normalize category name lookup numeric decimal digit bidirectional combining east_asian_width mirrored"
        " is_normalized unidata_version"
    ),
    "urllib.parse": split_names(
        "urlparse urlunparse urlsplit urlunsplit urlencode urljoin quote quote_plus unquote unquote_plus parse_qs"
        " parse_qsl urldefrag ParseResult SplitResult"
    ),
    "uuid": split_names("UUID uuid3 uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL NAMESPACE_OID NAMESPACE_X500"),
    "zlib": split_names("compress decompress crc32 adler32 error"),
    # Dangerous modules, of which only these names may be imported, and only by `from`.
    "operator": split_names(
        "itemgetter add sub mul truediv floordiv mod neg pos pow lt le eq ne gt ge and_ or_ xor not_ contains concat"
        " countOf indexOf index abs inv invert truth is_ is_not matmul getitem lshift rshift"
    ),
    "pathlib": split_names("PurePath PurePosixPath PureWindowsPath"),
    "sys": split_names("maxsize float_info int_info"),
}

# What standard code may import as well: harmless only because the jail, not RestrictedPython, holds the program.
STANDARD_LEVEL_EXPORTS: Mapping[str, frozenset[str]] = {
    "argparse": split_names("ArgumentParser Namespace ArgumentError ArgumentTypeError RawDescriptionHelpFormatter"),
    "ast": split_names("literal_eval"),
    "asyncio": split_names(
        "run gather sleep create_task wait wait_for as_completed shield timeout Queue PriorityQueue LifoQueue Lock"
        " Event Semaphore BoundedSemaphore Condition TaskGroup Task Future TimeoutError CancelledError QueueEmpty"
        " QueueFull iscoroutinefunction iscoroutine current_task all_tasks to_thread get_running_loop Runner"
        " ALL_COMPLETED FIRST_COMPLETED FIRST_EXCEPTION InvalidStateError"
    ),
    "concurrent.futures": split_names(
        "ThreadPoolExecutor as_completed wait Future TimeoutError ALL_COMPLETED FIRST_COMPLETED"
    ),
    "abc": SAFE_MODULE_EXPORTS["abc"] | {"ABCMeta"},
    "types": SAFE_MODULE_EXPORTS["types"] | {"MappingProxyType", "TracebackType"},
    "contextlib": SAFE_MODULE_EXPORTS["contextlib"] | split_names("asynccontextmanager AsyncExitStack aclosing"),
    "html.parser": split_names("HTMLParser"),
    "logging": split_names(
        "getLogger basicConfig debug info warning error exception critical log Logger NullHandler StreamHandler"
        " DEBUG INFO WARNING ERROR CRITICAL NOTSET getLevelName"
    ),
    "platform": split_names("python_version python_implementation"),
    "queue": split_names("Queue LifoQueue PriorityQueue SimpleQueue Empty Full"),
    "sched": split_names("scheduler"),
    "shlex": split_names("split quote join"),
    "threading": split_names(
        "Thread Lock RLock Event Semaphore BoundedSemaphore Condition Timer Barrier local current_thread get_ident"
        " active_count"
    ),
    "traceback": split_names("format_exc print_exc format_exception format_exception_only"),
    "unittest": split_names("TestCase main skip skipIf skipUnless expectedFailure TestSuite TextTestRunner"),
    "warnings": split_names("warn catch_warnings simplefilter filterwarnings"),
    "weakref": split_names("ref WeakValueDictionary WeakKeyDictionary WeakSet proxy"),
    "xml.etree.ElementTree": split_names("fromstring XML Element SubElement tostring ParseError Comment indent"),
    "yaml": split_names("safe_load safe_load_all safe_dump safe_dump_all YAMLError dump"),
    "zoneinfo": split_names("ZoneInfo ZoneInfoNotFoundError available_timezones"),
}

# Named in hints. Every other standard-library module without a table is refused too.
DANGEROUS_MODULES = frozenset(
    split_names(
        "os sys subprocess shutil socket ctypes importlib builtins pickle marshal shelve inspect operator pathlib"
        " signal multiprocessing pty fcntl resource gc code codeop codecs runpy timeit tempfile glob http ftplib"
        " smtplib sqlite3 webbrowser pdb posix nt"
    )
    # Only in older standard libraries, or in none. `test` is part of the library, and not in its list of names.
    | split_names(
        "test imp pipes crypt distutils asyncore asynchat smtpd telnetlib nntplib cgi cgitb commands popen2 cffi psutil"
        " pexpect ptyprocess paramiko fabric invoke sh plumbum dill cloudpickle joblib jsonpickle docker win32api"
        " win32com pip setuptools pkg_resources jinja2 mako numexpr RestrictedPython defserve"
    )
)

_FROM_ONLY = split_names("operator pathlib sys")

# What may not be taken from a module without a table (third-party, at standard).
BLOCKED_MODULE_MEMBERS = frozenset(
    split_names(
        "os sys subprocess builtins importlib ctypes ctypeslib f2py socket shutil pickle inspect codecs posix"
        " multiprocessing pathlib tempfile runpy marshal gc eval exec read_pickle to_pickle sympify parse_expr lambdify"
        " popen system memmap fromfile tofile"
    )
)

# Modules whose table holds everything that `from m import *` brings.
STAR_IMPORT_MODULES = split_names("math cmath")

# Keywords that turn a harmless call into one that writes, or that formats with braces: those read any attribute.
WRITING_KEYWORDS: Mapping[str, frozenset[str]] = {
    "logging.basicConfig": split_names("filename filemode handlers stream style")
}

# Functions that import or call what their other arguments name: called directly, with these keywords and nothing else.
HARMLESS_KEYWORDS: Mapping[str, frozenset[str]] = {
    "unittest.main": split_names("argv buffer catchbreak exit failfast verbosity")
}

# Functions whose other arguments name the attributes that they read: called directly, with one argument.
ONE_ARGUMENT = split_names("functools.wraps")

# Read the attributes that the fields of an object name: not where the program can say what those are.
FIELD_READERS = split_names("dataclasses.asdict dataclasses.astuple dataclasses.replace")

# Makes code out of what a class says it contains: only as the decorator of a class statement, whose names are read.
DECORATORS = split_names("dataclasses.dataclass")

# What the objects of a module give out although its table does not: modules, files, processes, connections. In a
# program that imports the module, no attribute may have such a name. Tests look for others by walking through the
# objects.
EXPOSED_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    # A parser of parsers copies all that the namespace of another object holds.
    "argparse": split_names(
        "fromfile_prefix_chars convert_arg_line_to_args add_subparsers parser_class _parser_class _name_parser_map"
        " _registries _registry_get _pop_action_class"
    ),
    "asyncio": split_names(
        "subprocess_exec subprocess_shell create_connection create_server create_datagram_endpoint"
        " create_unix_connection create_unix_server connect_accepted_socket connect_read_pipe connect_write_pipe"
        " sendfile sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendfile"
        " sock_sendto getaddrinfo getnameinfo add_reader add_writer add_signal_handler start_tls _ssock _csock"
        " _make_subprocess_transport _make_read_pipe_transport _make_write_pipe_transport _make_socket_transport"
        " _make_ssl_transport _make_datagram_transport _selector fileobj _connect_sock _ensure_resolved"
        " _getaddrinfo_debug"
    ),
    # Its class formats with braces, if it is told to.
    "logging": split_names("formatter"),
    "pathlib": split_names("parser pathmod _flavour"),
    "unittest": split_names(
        "formatter module testLoader loadTestsFromName loadTestsFromNames createTests runTests parseArgs"
    ),
    "warnings": split_names("_module"),
}

# The same of single members. Python 3.14 keeps text in an annotation as an object that can evaluate it.
EXPOSED_BY_MEMBER: Mapping[str, frozenset[str]] = dict.fromkeys(("Annotated", "fields"), split_names("evaluate"))

# A module that was reached on another way leads on by these names.
# (Also with underscores: `random._os`.)
HIDDEN_MODULES = split_names("os sys subprocess builtins importlib posix nt ctypes genericpath posixpath ntpath")


# The unbuffered file below an open one, whose class opens others, also to write.
FILE_ATTRIBUTES = split_names("raw detach")
FILE_MODULES = split_names("logging threading unittest")


def get_top_level_module(module: str) -> str:
    return module.partition(".")[0]


def find_exports(module: str, strict: bool) -> frozenset[str] | None:
    """What a module gives out, or None if it has no table at this level."""
    if not strict and module in STANDARD_LEVEL_EXPORTS:
        return STANDARD_LEVEL_EXPORTS[module]
    return SAFE_MODULE_EXPORTS.get(module)


def is_dangerous_module(module: str, strict: bool = False) -> bool:
    """Whether a module is refused even if an allow-list names it. Names in its table may still be imported."""
    if module in _FROM_ONLY:
        return True
    if find_exports(module, strict) is not None:
        return False
    top = get_top_level_module(module)
    return top in DANGEROUS_MODULES or top.startswith("_") or top in sys.stdlib_module_names
