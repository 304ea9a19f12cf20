"""Dead letters: what nobody could handle, with the reason, under a topic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lifecycle.bridges.subjects import as_token

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from lifecycle.bridges.settings import Settings

__all__ = ["dead_letter", "message_key"]

#: Characters of a reason that are kept.
_LONGEST = 500


def message_key(subject: str, id: str) -> str:  # noqa: A002  # the attribute's name
    """What the server knows an event by: one id may stand on several topics."""
    return f"{id} {subject}"


def dead_letter(
    message: Msg, topic: str, settings: Settings, *, reason: str, attempts: int, readable: bool
) -> tuple[str, dict[str, str], bytes, str]:
    """Subject, headers, body and key of the dead letter of ``message``: the same event, and what became of it.

    One that is not ``readable`` has the bytes of the body for its data.
    """
    subject = f"{settings.prefix}.dead.{'.'.join(as_token(segment) for segment in topic.split('/'))}"
    headers = {name: value for name, value in (message.headers or {}).items() if not name.lower().startswith("nats-")}
    id = f"{headers.get('ce-id') or message.metadata.sequence.stream}.dead.{settings.group}"  # noqa: A001  # its name
    headers |= {
        "ce-id": id,
        "dead-reason": quote(reason[:_LONGEST], safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace"),
        "dead-group": settings.group,
        "dead-attempts": str(attempts),
    }
    if not readable:
        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        headers["ce-datacontenttype"] = "application/octet-stream"
    if "ce-subject" in headers:
        headers["ce-subject"] = f"dead/{headers['ce-subject']}"
    return subject, headers, message.data, message_key(subject, id)
