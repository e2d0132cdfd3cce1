"""API keys: who is asking, and how much each may ask for. Keys are known by their hashes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from outrider.config import KeySection
from outrider.core import Priority
from outrider.errors import RateLimited, Unauthorized

_WINDOW_S = 60.0
_CONCURRENT_RETRY_S = 1.0
_OF_REQUESTS = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
_OF_TOKENS = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")


@dataclass(slots=True)
class Bucket:
    """A limit per minute that refills all the time; what was used in excess is paid off first."""

    limit: int
    level: float
    at_s: float

    def refill(self, now_s: float) -> None:
        """Let flow in what came since the last time, up to the limit."""
        self.level = min(self.level + (now_s - self.at_s) * self.limit / _WINDOW_S, self.limit)
        self.at_s = now_s

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there; 0 when it is."""
        return max(amount - self.level, 0.0) * _WINDOW_S / self.limit

    def headers(self, names: tuple[str, str, str]) -> dict[str, str]:
        """OpenAI's three, for the requests or the tokens."""
        limit, remaining, reset = names
        return {
            limit: str(self.limit),
            remaining: str(max(int(self.level), 0)),
            reset: f"{self.wait_s(self.limit):.3f}s",
        }


class Key:
    """One API key with what it has left."""

    def __init__(self, section: KeySection, now_s: float) -> None:
        self.section = section
        self.num_running = 0
        self._requests = _bucket(section.requests_per_min, now_s)
        self._tokens = _bucket(section.tokens_per_min, now_s)

    def __repr__(self) -> str:
        return f"<Key {self.section.name} of {self.tenant}: {self.num_running} running>"

    @property
    def usual_priority(self) -> Priority:
        """Of requests that name none: the default, or less where the key may not ask for that."""
        return "bulk" if self.section.priority == "bulk" else "default"

    @property
    def tenant(self) -> str:
        """Whose requests these are; without one named, the key's own name."""
        return self.section.tenant or self.section.name

    def enter(self, now_s: float) -> None:
        """Count one request that begins. RateLimited, with the time to wait, when a limit is reached."""
        limit = self.section.max_concurrent
        if limit is not None and self.num_running >= limit:
            raise RateLimited(f"{limit} requests of this key are running already", retry_after_s=_CONCURRENT_RETRY_S)
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is None:
                continue
            bucket.refill(now_s)
            if bucket.level < 1:
                message = f"the key's {bucket.limit} {what} per minute are used up"
                raise RateLimited(message, retry_after_s=bucket.wait_s(1))
        if self._requests is not None:
            self._requests.level -= 1
        self.num_running += 1

    def leave(self, num_tokens: int, now_s: float) -> None:
        """The request that entered has ended, having used so many tokens."""
        self.num_running -= 1
        if self._tokens is not None:
            self._tokens.refill(now_s)
            self._tokens.level -= num_tokens

    def give_back(self, now_s: float) -> None:
        """The request that entered has ended, and nothing of it was sent anywhere."""
        self.leave(0, now_s)
        if self._requests is not None:
            self._requests.refill(now_s)
            self._requests.level = min(self._requests.level + 1, self._requests.limit)

    def change(self, section: KeySection, now_s: float) -> None:
        """Other limits or another text from now on; what runs and what is used up stays."""
        self.section = section
        self._requests = _resized(self._requests, section.requests_per_min, now_s)
        self._tokens = _resized(self._tokens, section.tokens_per_min, now_s)

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*` of the limits that the key has."""
        requests = {} if self._requests is None else self._requests.headers(_OF_REQUESTS)
        return requests if self._tokens is None else requests | self._tokens.headers(_OF_TOKENS)


class KeyRing:
    """The keys in force. Without any from the beginning, and when none may come later, everybody may ask."""

    def __init__(self, sections: Sequence[KeySection] = (), now_s: float = 0.0, *, may_change: bool = False) -> None:
        self._keys: tuple[Key, ...] = ()
        self.is_open = not sections and not may_change
        """Nobody needs a key; a file that has none any more does not make it so."""
        self.replace(sections, now_s)

    def replace(self, sections: Sequence[KeySection], now_s: float) -> None:
        """Put other keys in force. A key that stays, by name, keeps what it has used."""
        old = {key.section.name: key for key in self._keys}
        self._keys = tuple(old.get(section.name) or Key(section, now_s) for section in sections)
        for key, section in zip(self._keys, sections, strict=True):
            if key.section != section:
                key.change(section, now_s)

    def named(self, name: str | None) -> Key | None:
        """The key of this name; None when none is."""
        return next((key for key in self._keys if key.section.name == name), None)

    def find(self, secret: str | None) -> Key:
        """The key whose text is `secret`. Every key is compared, each in constant time. Unauthorized when none is."""
        if secret is None:
            raise Unauthorized("an API key is required: Authorization: Bearer <key>")
        digest = sha256(secret.encode(errors="surrogateescape")).hexdigest()
        found = [key for key in self._keys if compare_digest(key.section.sha256, digest)]
        if not found:
            raise Unauthorized("the API key is not known")
        return found[0]


def _resized(bucket: Bucket | None, limit: int | None, now_s: float) -> Bucket | None:
    if bucket is None or limit is None:
        return _bucket(limit, now_s)
    bucket.refill(now_s)
    return Bucket(limit, max(limit - (bucket.limit - bucket.level), 0), now_s)


def _bucket(limit: int | None, now_s: float) -> Bucket | None:
    return None if limit is None else Bucket(limit, limit, now_s)
