"""The bridge's stream and the group's consumer. They are created if missing, and otherwise checked.

The server responds with the settings that it has applied. From these, we can tell if the server ignored a setting, or
if another program created the stream with different settings. We reject both cases here, before any events can be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lifecycle.bridges.subjects import covers, filters, widest
from lifecycle.control.patterns import Pattern
from lifecycle.errors import InvalidPattern, UnfitServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nats.js.api import ConsumerConfig, ConsumerInfo, StreamConfig

    from lifecycle.backoff import Backoff
    from lifecycle.bridges.connection import Connection

__all__ = [
    "Group",
    "Settings",
    "Subscriptions",
    "ensure_consumer",
    "ensure_stream",
    "patiently",
    "patterns_of",
    "replicated",
]

_log = logging.getLogger("lifecycle.bridges")

_Answer = TypeVar("_Answer")

#: How many seconds the server remembers ids to recognize duplicates.
_DEDUPE = 120.0

#: How many seconds a stream created by a bridge keeps its events, whether they have been handled or not.
_KEPT = 7 * 24 * 3600.0

#: The number of replicas when creating a stream in a cluster.
_COPIES = 3

#: The maximum number of unacknowledged events in a group. In strict order, the maximum is 1 instead.
_GROUP_PENDING = 10_000

#: Seconds to wait for a response, the number of attempts, and seconds between them. Clusters need a while to elect a
#: leader.
_ANSWER, _TRIES, _PAUSE = 3.0, 5, 1.0

#: The number of attempts between warnings about a cluster without a leader.
_WARN_EVERY = 30

#: Error codes. The first two codes mean that JetStream is disabled, so waiting is pointless. The last code means that
#: the cluster has fewer servers than the requested number of replicas.
_DISABLED, _NO_PEERS = (10039, 10076), 10005

#: Error code: the consumer's stream does not exist.
_NO_STREAM = 10059

#: The key in the consumer's metadata that stores all members' patterns. Each pattern has a stamp, which is renewed by
#: the members that subscribe to the pattern.
_PATTERNS = "lifecycle-patterns"

#: Seconds after which the group drops a pattern that no running member has renewed.
_FORGOTTEN = 900.0

#: The maximum number of seconds by which a stamp ages between two reads. Any further time, such as an outage, is
#: ignored.
_GAP = 10.0

#: The minimum number of seconds to wait before reading a new pattern back, to check whether another member has
#: overwritten it.
_SETTLED = 0.1

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}").fullmatch

_PREFIX = re.compile(r"(?=.{1,200}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one bridge.

    Raises:
        ValueError: if the server would not accept a name, or if a limit would prevent all deliveries.
    """

    stream: str
    prefix: str
    group: str
    subscribe: tuple[Pattern, ...]
    publish: tuple[Pattern, ...]
    max_in_flight: int
    ack_wait: float
    max_deliver: int
    backoff: Backoff
    sync: bool

    def __post_init__(self) -> None:
        for word, name in (("stream", self.stream), ("group", self.group)):
            if not _NAME(name):
                raise ValueError(f"{word} must consist of up to 200 letters, digits, - and _, got {name!r}")
        if not _PREFIX(self.prefix):
            raise ValueError(f"prefix must be words of letters, digits, - and _ separated by dots, got {self.prefix!r}")
        if self.max_in_flight < 1 or self.max_deliver < 1:
            raise ValueError(
                "max_in_flight and max_deliver must be 1 or more, "
                f"got max_in_flight={self.max_in_flight!r} and max_deliver={self.max_deliver!r}"
            )
        if not self.subscribe and not self.publish:
            raise ValueError("a bridge needs patterns to subscribe to or to publish, got none")

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a subscribed pattern matches ``topic``. The consumer's filter may be wider."""
        return any(pattern.matches(topic) for pattern in self.subscribe)


def patterns_of(word: str, given: Iterable[str | Pattern] | str | Pattern) -> tuple[Pattern, ...]:
    """Convert texts to patterns. A single text does not have to be in a list.

    Raises:
        InvalidPattern: if a text is not a valid pattern.
        TypeError: if ``given`` is neither a string nor a sequence of strings.
    """
    several = (given,) if isinstance(given, (str, Pattern)) else tuple(given)
    for each in several:
        if not isinstance(each, (str, Pattern)):
            raise TypeError(f"{word} must contain patterns such as 'deploy/**', got {each!r}")
    return tuple(each if isinstance(each, Pattern) else Pattern(each) for each in dict.fromkeys(several))


@dataclass(frozen=True, slots=True)
class Group:
    """The settings of a group's consumer."""

    name: str
    filters: list[str]
    ack_wait: float
    strict: bool
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


async def ensure_stream(connection: Connection, name: str, prefix: str) -> bool:
    """Create the stream for all subjects under ``prefix`` if it is missing. Return whether it was created.

    Raises:
        UnfitServer: if the existing stream cannot be used, or if it cannot be created.
    """
    if not (connection.said("jetstream") or connection.said("cluster")):
        raise UnfitServer(f"{connection.server!r} does not support streams; start nats-server with --jetstream")
    config, is_new = await replicated(connection, partial(_stream, connection, name, prefix), f"stream {name!r}")
    _compare_stream(config, name, prefix)
    return is_new


async def replicated(connection: Connection, make: Callable[[int], Awaitable[_Answer]], what: str) -> _Answer:
    """Call ``make`` with three replicas in a cluster, or with one if the cluster rejects three. Return its result.

    Raises:
        UnfitServer: if the server also rejects one replica.
    """
    from nats.js.errors import APIError

    for copies in (_COPIES, 1) if connection.said("cluster") else (1,):
        try:
            return await patiently(connection, partial(make, copies))
        except APIError as error:
            if copies == 1:
                raise UnfitServer(f"{what} cannot be created: {error.description}") from None
            _log.warning(
                "%s has only one replica, so its data is lost if that server is lost: %s", what, error.description
            )
    raise AssertionError("creating one replica returns or raises")


async def patiently(connection: Connection, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Return the result of ``ask``, retrying until a leader responds.

    If there is only one server, we stop after a few attempts. For a cluster, there is no limit, because a cluster that
    has just started has no leader until enough of its servers are running.

    Raises:
        UnfitServer: if JetStream is disabled.
        TimeoutError: if a single server does not respond.
    """
    from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

    for tries in itertools.count(1):
        try:
            answer = await ask()
        except (TimeoutError, NoStreamResponseError, ServiceUnavailableError) as error:
            reason = getattr(error, "description", None) or "no response"
            if getattr(error, "err_code", None) in _DISABLED:
                raise UnfitServer(f"{connection.server!r} cannot store streams: {reason}") from None
            connection.missed(reason)
            if tries >= _TRIES and not connection.said("cluster"):
                raise TimeoutError(
                    f"JetStream on {connection.server!r} does not respond: {reason}; see its log"
                ) from None
            if tries % _WARN_EVERY == _TRIES:
                _log.warning("waiting for a leader among the servers of %r: %s", connection.server, reason)
        except APIError as error:
            connection.answered()
            if error.err_code != _NO_PEERS or tries >= _TRIES:
                raise
        else:
            connection.answered()
            return answer
        await asyncio.sleep(_PAUSE)
    raise AssertionError("the last attempt returns or raises")


async def _stream(connection: Connection, name: str, prefix: str, copies: int) -> tuple[StreamConfig, bool]:
    """Return the settings of the stream, and whether this call created it."""
    from nats.js.api import RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import NotFoundError

    try:
        return (await connection.js.stream_info(name)).config, False
    except NotFoundError:
        wanted = StreamConfig(
            name=name,
            subjects=[f"{prefix}.>"],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=_KEPT,
            duplicate_window=_DEDUPE,
            num_replicas=copies,
            allow_direct=True,
        )
        info = await connection.js.add_stream(wanted)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
    return info.config, True


def _compare_stream(config: StreamConfig, name: str, prefix: str) -> None:
    wrong = [
        (not any(covers(each, f"{prefix}.>") for each in config.subjects or ()), f"does not include {prefix}.>"),
        (config.retention == "workqueue", "is a work queue, which delivers each event to only one group"),
        (config.no_ack, "does not acknowledge events"),
        (config.sealed, "is sealed"),
        (config.duplicate_window <= 0, "does not detect duplicate ids"),
    ]
    for is_so, what in wrong:
        if is_so:
            raise UnfitServer(f"stream {name!r} {what}; change it, or use a different stream for the bridge")


class Subscriptions:
    """The patterns that all members of a group subscribe to. Together, they define the consumer's filter.

    The patterns are stored in the consumer's metadata. Members add their patterns when they start, and renew the
    patterns' stamps while they run. If a stamp has not changed for 15 minutes, no running member uses the pattern any
    longer, so the pattern is removed. A member never removes other members' patterns when it starts, so restarting an
    older version does not affect a newer one.
    """

    def __init__(self, settings: Settings) -> None:
        #: The name of the group.
        self.name: str = settings.group
        self._settings = settings
        self._own = {each.canonical: each for each in settings.subscribe}
        self._own_filters = filters(settings.subscribe, settings.prefix)
        # Maps each pattern to its stamp, and to the time when this process first read that stamp.
        self._stamps: dict[str, tuple[str, float]] = {}
        self._others: dict[str, Pattern] = {}
        # Filters that do not belong to a known pattern, because another program created the consumer.
        self._strange: dict[str, float] = {}
        # The consumer's current filter. Empty means all subjects.
        self._got: list[str] = []
        # Metadata written by other programs.
        self._remarks: dict[str, str] = {}
        self._read_at: float | None = None

    def read(self, config: ConsumerConfig) -> None:
        """Load the consumer's metadata and filter."""
        now = asyncio.get_running_loop().time()
        self._skip(now)
        stamps = _stamps_of(config)
        self._warn_of_loss(stamps)
        self._remarks = {
            name: value
            for name, value in (config.metadata or {}).items()
            if name != _PATTERNS and not name.startswith("_nats.")
        }
        self._stamps = {text: (stamp, self._since(text, stamp, now)) for text, stamp in stamps.items()}
        self._got = _filters_of(config)
        others = {text: pattern for text in stamps if text not in self._own and (pattern := _pattern(text))}
        # An operator may have removed a pattern from the filter.
        others = {text: pattern for text, pattern in others.items() if self._is_got(pattern)}
        known = filters([*self._own.values(), *others.values()], self._settings.prefix)
        strange = {
            each: self._strange.get(each, now) for each in self._got if not any(covers(wide, each) for wide in known)
        }
        if others.keys() - self._others.keys() or strange.keys() - self._strange.keys():
            _log.warning(
                "the group %r also receives %s, which this member does not subscribe to; these events wait for other "
                "members, and the group stops receiving them if no member subscribes within %g minutes",
                self._settings.group,
                ", ".join([*others, *strange]),
                _FORGOTTEN / 60,
            )
        self._others, self._strange = others, strange

    def is_due(self) -> bool:
        """Return whether the consumer must be updated because a stamp is missing or out of date."""
        now = asyncio.get_running_loop().time()
        renewed = now - _FORGOTTEN / 3
        own = self.is_complete() and all(self._stamps[text][1] > renewed for text in self._own)
        return not own or bool(self._out_of_date(now))

    def group(self) -> Group:
        """Renew this member's stamps, remove outdated entries, and return the consumer's new settings."""
        now = asyncio.get_running_loop().time()
        if gone := self._out_of_date(now):
            _log.warning(
                "the group %r no longer receives %s: no member has subscribed to it for %g minutes",
                self._settings.group,
                ", ".join(gone),
                _FORGOTTEN / 60,
            )
        for text in gone:
            self._others.pop(text, None)
            self._strange.pop(text, None)
        stamp = uuid.uuid4().hex[:8]
        stamps = {text: self._stamps[text][0] for text in self._others} | dict.fromkeys(self._own, stamp)
        settings = self._settings
        wanted = filters([*self._own.values(), *self._others.values()], settings.prefix)
        return Group(
            settings.group,
            widest([*wanted, *self._strange]),
            settings.ack_wait,
            strict=settings.max_in_flight == 1,
            metadata=self._remarks | {_PATTERNS: json.dumps(stamps, ensure_ascii=False)},
        )

    def is_elsewhere(self, topic: str) -> bool:
        """Return whether another member may subscribe to ``topic``."""
        return any(each.matches(topic) for each in self._others.values())

    def is_ours(self, subject: str) -> bool:
        """Return whether the filter that this member needs includes ``subject``."""
        return any(covers(each, subject) for each in self._own_filters)

    def is_complete(self) -> bool:
        """Return whether the consumer has all of this member's patterns."""
        return all(text in self._stamps and self._is_got(pattern) for text, pattern in self._own.items())

    def _skip(self, now: float) -> None:
        """Don't let stamps age while there are no reads. Members that could not renew their stamps may be back soon."""
        gap = 0.0 if self._read_at is None else max(0.0, now - self._read_at - _GAP)
        self._read_at = now
        if gap:
            self._stamps = {
                text: (stamp, since if text in self._own else since + gap)
                for text, (stamp, since) in self._stamps.items()
            }
            self._strange = {each: since + gap for each, since in self._strange.items()}

    def _warn_of_loss(self, stamps: Mapping[str, str]) -> None:
        """Warn about this member's patterns that were removed from the group."""
        if gone := [text for text in self._own if text in self._stamps and text not in stamps]:
            _log.warning(
                "another member removed %s from the group %r; adding it again, but the group may miss events sent in "
                "the meantime",
                ", ".join(gone),
                self._settings.group,
            )

    def _is_got(self, pattern: Pattern) -> bool:
        """Return whether the group receives all topics that match ``pattern``."""
        wanted = filters([pattern], self._settings.prefix)
        return not self._got or all(any(covers(wide, each) for wide in self._got) for each in wanted)

    def _since(self, text: str, stamp: str, now: float) -> float:
        last, since = self._stamps.get(text, ("", now))
        return since if last == stamp else now

    def _out_of_date(self, now: float) -> list[str]:
        since = {text: self._stamps[text][1] for text in self._others} | self._strange
        return [text for text, at in since.items() if now - at >= _FORGOTTEN]


def _stamps_of(config: ConsumerConfig) -> dict[str, str]:
    """Return all members' patterns and their stamps, or an empty dict if another program wrote the metadata."""
    try:
        said: Any = json.loads((config.metadata or {}).get(_PATTERNS, "{}"))
    except ValueError:
        return {}
    items = cast("dict[object, object]", said).items() if isinstance(said, dict) else ()
    return {str(text): str(stamp) for text, stamp in items}


def _pattern(text: str) -> Pattern | None:
    try:
        return Pattern(text)
    except InvalidPattern:
        return None


def _filters_of(config: ConsumerConfig) -> list[str]:
    return sorted(config.filter_subjects or ([config.filter_subject] if config.filter_subject else []))


async def ensure_consumer(connection: Connection, stream: str, subscriptions: Subscriptions) -> None:
    """Create the group's consumer, or update it for its members.

    The server does not check a consumer's revision. If two members start at the same time, the second member may
    overwrite the first member's patterns. This function therefore reads new patterns back before it returns.

    Raises:
        UnfitServer: if the server rejects the consumer, or creates it with different settings.
    """
    from nats.js.errors import APIError, NotFoundError

    group, clock = subscriptions.name, asyncio.get_running_loop().time

    async def has_own() -> bool:
        try:
            subscriptions.read((await connection.js.consumer_info(stream, group, timeout=_ANSWER)).config)
        except NotFoundError as error:
            if error.err_code == _NO_STREAM:
                raise
            return False
        return subscriptions.is_complete()

    async def make() -> tuple[ConsumerInfo, Group, bool]:
        is_new = not await has_own()
        wanted = subscriptions.group()
        info = await connection.js.add_consumer(stream, _consumer(wanted), timeout=_ANSWER)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        return info, wanted, is_new

    try:
        while True:
            began = clock()
            info, wanted, is_new = await patiently(connection, make)
            _compare_consumer(info.config, wanted)
            subscriptions.read(info.config)
            if not is_new:
                return
            await asyncio.sleep(max(_SETTLED, 5 * (clock() - began)))
            if await patiently(connection, has_own):
                return
    except APIError as error:
        raise UnfitServer(f"the server rejected the group {group!r}: {error.description}") from None


def _consumer(group: Group) -> ConsumerConfig:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    return ConsumerConfig(
        name=group.name,
        durable_name=group.name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=group.ack_wait,
        # The bridge counts failures itself. If the server limited deliveries, it would drop events without a dead
        # letter.
        max_deliver=-1,
        filter_subjects=group.filters,
        metadata=dict(group.metadata),
        max_ack_pending=1 if group.strict else _GROUP_PENDING,
    )


def _compare_consumer(got: ConsumerConfig, group: Group) -> None:
    wanted = _consumer(group)
    pairs = {
        "ack_policy": (got.ack_policy, wanted.ack_policy),
        "ack_wait": (got.ack_wait, wanted.ack_wait),
        "max_deliver": (got.max_deliver, wanted.max_deliver),
        "max_ack_pending": (got.max_ack_pending, wanted.max_ack_pending),
        "filter_subjects": (_filters_of(got), group.filters),
    }
    for setting, (is_now, asked) in pairs.items():
        if is_now != asked:
            raise UnfitServer(
                f"the server created the group {group.name!r} with {setting}={is_now!r} instead of {asked!r}; "
                "the server is too old, or a proxy changes requests"
            )
