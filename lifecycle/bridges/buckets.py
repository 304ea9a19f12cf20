"""The bucket on the server that leases are kept in: made where it is missing, else compared."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lifecycle.bridges.lease_keys import BUCKET, STREAM
from lifecycle.bridges.streams import replicated
from lifecycle.errors import UnfitServer

if TYPE_CHECKING:
    from nats.js.api import StreamConfig

    from lifecycle.bridges.links import Link

__all__ = ["ensure_bucket"]


async def ensure_bucket(link: Link) -> None:
    """See that there is a bucket for leases.

    Raises:
        UnfitServer: when there is one that is of no use, or none can be made.
    """
    if not (link.said("jetstream") or link.said("cluster")):
        raise UnfitServer(f"{link.server!r} keeps no buckets; start nats-server with --jetstream")
    _compare(await replicated(link, partial(_bucket, link), f"the bucket {BUCKET!r}"))


async def _bucket(link: Link, copies: int) -> StreamConfig:
    """The settings of the stream behind the bucket, which is made if there is none."""
    from nats.js.errors import NotFoundError

    try:
        return (await link.js.stream_info(STREAM)).config
    except NotFoundError:
        await link.js.create_key_value(bucket=BUCKET, replicas=copies)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        return (await link.js.stream_info(STREAM)).config


def _compare(config: StreamConfig) -> None:
    wrong = [
        (not config.allow_msg_ttl, "its keys do not end by themselves"),
        (bool(config.max_age), "it forgets what it is to keep"),
        (bool(config.sealed), "it is sealed"),
    ]
    for is_so, what in wrong:
        if is_so:
            raise UnfitServer(f"the bucket {BUCKET!r} is of no use for leases: {what}; delete it, and one is made")
