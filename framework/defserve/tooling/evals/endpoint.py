"""Asks a model over HTTP: with which key, how often, how long, and for how many tokens at most.

An endpoint is not trusted. Its answers are bounded, its texts are cleaned before anybody sees them, and a key that it
echoes is masked wherever it stands. An endpoint that fails says nothing about a model: `EndpointFailure` is a run that
is missing, and `FinalRefusal` ends the whole suite, because the next request would be refused as well.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, NamedTuple

from defserve.auth.oauth import is_loopback
from defserve.base.backoff import compute_backoff
from defserve.base.http_connection import BrokenHttpConnection, HttpConnectFailed
from defserve.base.redaction import REDACTION_MASK, redact_text
from defserve.client.links.http_client import OriginHttpClient, ProxiedClient, RequestAddress, uses_http_proxy
from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.errors import DefserveError, UsageError, did_you_mean
from defserve.tooling.evals.dialects import DIALECTS, Dialect, ModelRequest
from defserve.tooling.evals.judging import ModelAnswer

MAX_ANSWER_BYTES: Final = 10 * 1024 * 1024
MAX_ANSWER_DEPTH, MAX_ANSWER_KEYS = 64, 10_000
MAX_TRIES: Final = 5
MAX_WAIT_SECONDS: Final = 120.0
FIRST_WAIT_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 8.0
DEFAULT_TIMEOUT_SECONDS: Final = 120.0
DEFAULT_MAX_TOKENS_TOTAL: Final = 200_000
MIN_KEY_LENGTH: Final = 4
"""A shorter key is masked nowhere: it would mask common words."""

STOPPING: Final = frozenset((400, 401, 403, 404, 405, 410, 413, 422))
SPENT: Final = ("insufficient_quota", "billing", "credit balance", "quota exceeded")
RANKER_DIALECT: Final = "ranker"


class EndpointFailure(DefserveError):
    """The endpoint did not answer, after all tries. The run is missing."""


class FinalRefusal(DefserveError):
    """The endpoint refuses requests such as this. Asking again would not help."""


class BudgetSpent(DefserveError):
    """The next request could go past `--max-tokens-total`. It is not sent."""


class ModelName(NamedTuple):
    """`ollama:qwen3`: the dialect, and the model's own name."""

    dialect: str
    name: str

    def __str__(self) -> str:
        return f"{self.dialect}:{self.name}" if self.name else self.dialect


def parse_model(text: str) -> ModelName:
    """Raises UsageError for a dialect that does not exist."""
    dialect, colon, name = text.partition(":")
    if text == RANKER_DIALECT:
        return ModelName(RANKER_DIALECT, "")
    if dialect not in DIALECTS or not name.strip():
        known = ", ".join(f"{each}:NAME" for each in DIALECTS)
        fix = did_you_mean(dialect, DIALECTS, f"use {known} or ranker") if colon else f"use {known} or ranker"
        raise UsageError(f"{text!r} names no model", fix=fix)
    return ModelName(dialect, name.strip())


class ModelAddress(NamedTuple):
    """Where a model is, and the key for it."""

    url: str
    key: str | None = None
    is_home: bool = False
    """Whether it is the vendor's own host."""


def resolve_model_address(
    model: ModelName, url: str | None, key_env: str | None, environment: Mapping[str, str] = os.environ
) -> ModelAddress:
    """Where requests go. A vendor's key goes to its own host alone, and no key over plain HTTP but to this machine.

    Raises UsageError for an address or a key that cannot be used.
    """
    dialect = DIALECTS[model.dialect]
    base = (url or dialect.home).rstrip("/").removesuffix("/v1")
    try:
        address, home = RequestAddress(base + dialect.path), RequestAddress(dialect.home)
    except ValueError:
        raise UsageError(f"{url!r} is not an address", fix="write --url http://127.0.0.1:8080") from None
    is_home = address.origin == home.origin
    key = environment.get(key_env) if key_env else environment.get(dialect.key_env) if is_home else None
    if key_env and not key:
        raise UsageError(f"the environment has no {key_env}", fix=f"export {key_env}=…, or leave --key-env out")
    if is_home and dialect.key_env and not key:
        raise UsageError(
            f"{address.origin[1]} needs a key", fix=f"export {dialect.key_env}=…, or name another endpoint with --url"
        )
    if key and address.origin[0] == "http" and not is_loopback(address.origin[1]):
        raise UsageError(f"a key would go to {address} in plain text", fix="use https, or leave --key-env out")
    return ModelAddress(address.url, key.strip() if key else None, is_home)


@dataclass(slots=True)
class TokenBudget:
    """Tokens of all requests. What an endpoint does not report is estimated."""

    limit: int = DEFAULT_MAX_TOKENS_TOTAL
    spent: int = 0
    reserved: int = 0

    def reserve(self, tokens: int) -> None:
        """Raises BudgetSpent."""
        if self.spent + self.reserved + tokens > self.limit:
            raise BudgetSpent(
                f"{self.spent + self.reserved:,} of {self.limit:,} tokens are spent\n"
                "  fix: give more with --max-tokens-total"
            )
        self.reserved += tokens

    def settle(self, reserved: int, spent: int) -> None:
        self.reserved -= reserved
        self.spent += spent


def estimate_request_tokens(body: Any) -> int:
    """A quarter of the characters."""
    return -(-len(json.dumps(body, ensure_ascii=False, separators=(",", ":"))) // 4)


@dataclass(slots=True)
class ModelEndpoint:
    """One endpoint. `wait` and `timeout` are given by tests."""

    dialect: Dialect
    address: ModelAddress
    budget: TokenBudget = field(default_factory=TokenBudget)
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    wait: Callable[[float], Awaitable[object]] = asyncio.sleep
    requests: int = 0
    _has_answered: bool = False
    _client: OriginHttpClient | ProxiedClient | None = None
    _refusal: FinalRefusal | None = None

    async def __aenter__(self) -> ModelEndpoint:
        where = RequestAddress(self.address.url)
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "defserve-eval"}
        try:
            headers |= self.dialect.make_headers(self.address.key)
            self._client = ProxiedClient(where, headers) if uses_http_proxy(where) else OriginHttpClient(where, headers)
        except ValueError:
            raise UsageError("the key has characters that HTTP cannot carry", fix="copy it again") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """The answer. Raises EndpointFailure after all tries, FinalRefusal, BudgetSpent."""
        if self._refusal is not None:
            raise self._refusal
        body = self.dialect.make_body(request)
        estimate = estimate_request_tokens(body)
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")
        problem = ""
        for tried in range(MAX_TRIES):
            self.budget.reserve(estimate)
            spent = 0
            try:
                answer = self._read(*await self._send(content), estimate)
                self._has_answered = True
                spent = (answer.usage.input or estimate) + (answer.usage.output or len(answer.text) // 4)
                return answer
            except _Retry as retry:
                problem, seconds = str(retry), retry.seconds
            except FinalRefusal as refusal:
                self._refusal = refusal
                raise
            finally:
                self.budget.settle(estimate, spent)
            if tried + 1 < MAX_TRIES:
                await self.wait(
                    compute_backoff(tried, FIRST_WAIT_SECONDS, MAX_BACKOFF_SECONDS) if seconds is None else seconds
                )
        raise EndpointFailure(f"{RequestAddress(self.address.url)}: {problem}, {MAX_TRIES} times")

    async def _send(self, content: bytes) -> tuple[int, Mapping[str, str], bytes]:
        assert self._client is not None
        self.requests += 1
        try:
            async with asyncio.timeout(self.timeout):
                target = RequestAddress(self.address.url).target
                response = await self._client.send("POST", target, {}, content)
                try:
                    return response.status, response.headers, await response.read_body_start(MAX_ANSWER_BYTES)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise _Retry(f"no answer within {self.timeout:g} s") from None
        except HttpConnectFailed as error:
            if self._has_answered:
                raise _Retry(f"the connection failed: {self._clean(str(error))}") from None
            # It's more likely not there than busy: waiting for it, run by run, only hides what is wrong.
            raise FinalRefusal(self._explain_absence(self._clean(str(error)))) from None
        except BrokenHttpConnection as error:
            raise _Retry(f"the connection failed: {self._clean(str(error))}") from None

    def _explain_absence(self, error: str) -> str:
        start = (
            "start Ollama (ollama serve)" if self.address.is_home and not self.dialect.key_env else "start the model"
        )
        return (
            f"nobody answers at {RequestAddress(self.address.url)}: {error}\n"
            f"  fix: {start}, or name another endpoint with --url; --model {RANKER_DIALECT} needs none"
        )

    def _read(self, status: int, headers: Mapping[str, str], data: bytes, estimate: int) -> ModelAnswer:
        if len(data) > MAX_ANSWER_BYTES:
            raise _Retry(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        if status != 200:
            raise self._explain_status(status, headers, data)
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            kind = "a page" if data.lstrip()[:1] == b"<" else "something that is not JSON"
            raise _Retry(f"the endpoint answered with {kind}") from None
        if not is_object(body) or find_limit_violation(body, MAX_ANSWER_DEPTH, MAX_ANSWER_KEYS):
            raise _Retry("the endpoint answered with JSON that is no answer")
        try:
            answer = self.dialect.read_answer(self._mask(body))
        except ValueError as error:
            raise _Retry(f"the answer has another shape: {error}") from None
        if answer.usage.input is not None and answer.usage.input * 2 < estimate:
            raise EndpointFailure(
                f"the endpoint cut the prompt: it read {answer.usage.input:,} of about {estimate:,} tokens\n"
                "  fix: give the model a larger context (--context for Ollama)"
            )
        return answer

    def _explain_status(self, status: int, headers: Mapping[str, str], data: bytes) -> Exception:
        text = self._clean(data[:2_000].decode("utf-8", "replace"))
        if status in STOPPING or (status == 429 and any(word in text.lower() for word in SPENT)):
            return FinalRefusal(f"{RequestAddress(self.address.url)} answered {status}: {text}")
        return _Retry(f"HTTP {status}", parse_retry_seconds(headers))

    def _clean(self, text: str) -> str:
        return redact_text(self._mask(text), limit=600)

    def _mask(self, value: Any) -> Any:
        """The value without our key."""
        key = self.address.key
        return mask_text(value, key) if key and len(key) >= MIN_KEY_LENGTH else value


def mask_text(value: Any, secret: str) -> Any:
    """A JSON value in which no text, and no name, has the secret."""
    if isinstance(value, str):
        return value.replace(secret, REDACTION_MASK)
    if is_object(value):
        return {mask_text(name, secret): mask_text(below, secret) for name, below in value.items()}
    return [mask_text(below, secret) for below in value] if is_array(value) else value


class _Retry(Exception):
    """Something that may go better the next time, and when the endpoint wants that to be."""

    def __init__(self, problem: str, seconds: float | None = None) -> None:
        super().__init__(problem)
        self.seconds = seconds


def parse_retry_seconds(
    headers: Mapping[str, str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """The wait that an endpoint asks for: milliseconds, seconds or a date, up to two minutes; None without one."""
    milliseconds, seconds = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    try:
        if milliseconds:
            wanted = float(milliseconds[:20]) / 1000
        elif seconds.replace(".", "", 1).isdecimal():
            wanted = float(seconds[:20])
        elif seconds:
            wanted = (parsedate_to_datetime(seconds[:64]) - now()).total_seconds()
        else:
            return None
    except (ValueError, TypeError):
        return None
    return min(max(wanted, 0.0), MAX_WAIT_SECONDS) if wanted == wanted else None
