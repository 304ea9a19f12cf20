"""What a bridge needs on the server: its stream and its group's consumer, made where they are missing, else compared.

A server answers with the settings that it took. One that ignores a setting, or a stream that somebody made in another
way, shows in that answer, and is refused here before it can lose anything.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lifecycle.errors import UnfitServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.js.api import ConsumerConfig, ConsumerInfo, StreamConfig

    from lifecycle.bridges.links import Link

__all__ = ["COPIES", "Group", "ensure_consumer", "ensure_stream", "patiently"]

_log = logging.getLogger("lifecycle.bridges")

_Answer = TypeVar("_Answer")

#: Seconds in which the server knows an id again.
_DEDUPE = 120.0

#: Seconds that a stream which a bridge made keeps its events, handled or not.
_KEPT = 7 * 24 * 3600.0

#: Copies of a stream that is made in a cluster.
COPIES = 3

#: Events that a group may have under way in all; one that wants strict order has one.
_GROUP_PENDING = 10_000

#: Seconds for an answer of the server, and how often it is asked: a cluster that has lost its leader needs a while.
_ANSWER, _TRIES, _PAUSE = 3.0, 5, 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """What the consumer of a group is to be."""

    name: str
    filters: list[str]
    ack_wait: float
    strict: bool


async def ensure_stream(link: Link, name: str, prefix: str) -> None:
    """See that there is a stream for the subjects of ``prefix``.

    Raises:
        UnfitServer: when the one of that name is of no use, or none can be made.
    """
    from nats.js.errors import APIError

    if not (link.said("jetstream") or link.said("cluster")):
        raise UnfitServer(f"{link.server!r} keeps no streams; start nats-server with --jetstream")
    for copies in (COPIES, 1) if link.said("cluster") else (1,):
        try:
            config = await patiently(partial(_stream, link, name, prefix, copies))
        except APIError as error:
            if copies == 1:
                raise UnfitServer(f"stream {name!r} cannot be made: {error.description}") from error
            _log.warning("stream %r gets one copy: %s", name, error.description)
        else:
            _compare_stream(config, name, prefix)
            return


async def patiently(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What ``ask`` returns, asked several times where there is no leader that could answer."""
    from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

    for left in reversed(range(_TRIES)):
        try:
            return await ask()
        except (TimeoutError, NoStreamResponseError, ServiceUnavailableError):
            if not left:
                raise
            await asyncio.sleep(_PAUSE)
    raise AssertionError("the last try raises or returns")


async def _stream(link: Link, name: str, prefix: str, copies: int) -> StreamConfig:
    """The settings of the stream, which is made if there is none."""
    from nats.js.api import RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import NotFoundError

    try:
        info = await link.js.stream_info(name)
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
        info = await link.js.add_stream(wanted)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
    return info.config


def _compare_stream(config: StreamConfig, name: str, prefix: str) -> None:
    from lifecycle.bridges.subjects import covers

    wrong = [
        (not any(covers(each, f"{prefix}.>") for each in config.subjects or ()), f"does not take {prefix}.>"),
        (config.retention == "workqueue", "is a work queue, which gives an event to one group only"),
        (config.no_ack, "does not acknowledge what it takes"),
        (config.sealed, "is sealed"),
        (config.duplicate_window <= 0, "does not know an id again"),
    ]
    for is_so, what in wrong:
        if is_so:
            raise UnfitServer(f"stream {name!r} {what}; change it, or give the bridge another stream")


async def ensure_consumer(link: Link, stream: str, group: Group) -> None:
    """See that the consumer of ``group`` is there and as it is to be; one with old settings is changed.

    Raises:
        UnfitServer: when the server refuses it, or made it in another way.
    """
    from nats.js.errors import APIError, ServiceUnavailableError

    async def add() -> ConsumerInfo:
        return await link.js.add_consumer(stream, _consumer(group), timeout=_ANSWER)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    try:
        info = await patiently(add)
    except ServiceUnavailableError:
        raise
    except APIError as error:
        raise UnfitServer(f"the server refuses the group {group.name!r}: {error.description}") from error
    _compare_consumer(info.config, group)


def _consumer(group: Group) -> ConsumerConfig:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    return ConsumerConfig(
        name=group.name,
        durable_name=group.name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=group.ack_wait,
        # The bridge counts itself: the server would forget the event where a dead letter is due.
        max_deliver=-1,
        filter_subjects=group.filters,
        max_ack_pending=1 if group.strict else _GROUP_PENDING,
    )


def _compare_consumer(got: ConsumerConfig, group: Group) -> None:
    wanted = _consumer(group)
    theirs = sorted(got.filter_subjects or ([got.filter_subject] if got.filter_subject else []))
    pairs = {
        "ack_policy": (got.ack_policy, wanted.ack_policy),
        "ack_wait": (got.ack_wait, wanted.ack_wait),
        "max_deliver": (got.max_deliver, wanted.max_deliver),
        "max_ack_pending": (got.max_ack_pending, wanted.max_ack_pending),
        "filter_subjects": (theirs, group.filters),
    }
    for setting, (is_now, asked) in pairs.items():
        if is_now != asked:
            raise UnfitServer(
                f"the server made the group {group.name!r} with {setting}={is_now!r} where {asked!r} was asked for; "
                "it is too old, or something between changes requests"
            )
