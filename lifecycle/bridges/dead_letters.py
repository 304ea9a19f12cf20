"""Dead letters: what nobody could handle, with the reason, under a topic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from lifecycle.bridges.subjects import LONGEST, as_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg

    from lifecycle.bridges.settings import Settings

__all__ = ["LONGEST_REASON", "Letter", "letters", "message_key"]

#: Subject, headers, body and key.
Letter: TypeAlias = tuple[str, dict[str, str], bytes, str]

#: Characters of a reason that are kept.
LONGEST_REASON = 500


def message_key(subject: str, id: str) -> str:  # noqa: A002  # the attribute's name
    """What the server knows an event by: one id may stand on several topics."""
    return f"{id} {subject}"


def letters(
    message: Msg, topic: str, settings: Settings, *, reason: str, attempts: int, readable: bool
) -> Iterator[Letter]:
    """The dead letter of ``message``, and one that takes less room; none where its subject takes too much.

    It is the same event, and what became of it. One that is not ``readable`` has the bytes of the body for its data.
    """
    subject = f"{settings.prefix}.dead.{'.'.join(as_token(segment) for segment in topic.split('/'))}"
    if len(subject) > LONGEST + len("dead."):
        return
    number = message.metadata.sequence.stream
    headers = {name: value for name, value in (message.headers or {}).items() if not name.lower().startswith("nats-")}
    if not readable:
        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        headers["ce-datacontenttype"] = "application/octet-stream"
    if "ce-subject" in headers:
        headers["ce-subject"] = f"dead/{headers['ce-subject']}"
    told = {"dead-group": settings.group, "dead-attempts": str(attempts)}
    for body, others, id, what in (  # noqa: A001  # its name
        (message.data, headers, headers.get("ce-id") or number, ""),
        (b"", {}, number, f"; it is too big for a letter, and stays in event {number} of {settings.stream}"),
    ):
        name = f"{id}.dead.{settings.group}"
        marks = told | {"ce-id": name, "dead-reason": _quoted(reason[:LONGEST_REASON] + what)}
        yield subject, others | marks, body, message_key(subject, name)


def _quoted(text: str) -> str:
    return quote(text, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace")
