"""What the HTTP API answers, and what it refuses, always as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from lifecycle.observe._http.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.typedefs import Handler

__all__ = ["HEADERS", "errors_as_json", "json_answer", "json_object", "problem", "text_answer"]

_log = logging.getLogger("lifecycle.observe")

#: Bytes of a request's body.
_LARGEST = 1024 * 1024

#: Seconds for it to arrive.
_PATIENCE = 30.0

#: On every answer: kept nowhere, taken for nothing else.
HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "Server": "lifecycle", "X-Content-Type-Options": "nosniff"}


def json_answer(value: Any) -> web.Response:
    """``value`` as JSON."""
    return web.json_response(value, headers=HEADERS)


def text_answer(text: str) -> web.Response:
    """Plain text; half surrogates, which names may have, are shown as what they are."""
    return web.Response(body=text.encode(errors="backslashreplace"), content_type="text/plain", headers=HEADERS)


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error, in words for the person who asked."""
    return web.json_response({"error": reason}, status=status, headers={**HEADERS, **(headers or {})})


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let aiohttp's own refusals, such as 404 and 405, be JSON too; an error of ours is logged and says nothing."""
    try:
        return await handler(request)
    except Refused as refusal:
        return problem(refusal.status, refusal.reason)
    except web.HTTPMethodNotAllowed as refusal:
        allowed = ", ".join(sorted(refusal.allowed_methods))
        return problem(405, f"this method is not allowed here; use {allowed}", {"Allow": allowed})
    except web.HTTPNotFound:
        return problem(404, "there is nothing under this path")
    except web.HTTPException as refusal:
        return problem(refusal.status, refusal.reason)
    except (ConnectionError, TimeoutError):
        raise
    except Exception:  # noqa: BLE001  # one request that fails is no end of the server
        _log.exception("%s %s failed", request.method, request.path)
        return problem(500, "internal error; the log of the program says more")


async def json_object(request: web.Request, **kinds: type[Any]) -> dict[str, Any]:
    """The JSON object in the body, which must have these fields of these kinds.

    Raises:
        Refused: 400, 408, 413, 415 or 501, saying what is wrong.
    """
    if request.content_type != "application/json":
        raise Refused(415, "the body must be JSON; send Content-Type: application/json")
    if request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        raise Refused(501, "of transfer codings, only chunked is decoded; send the body as it is")
    try:
        found = json.loads(await _body(request), parse_constant=_no_number)
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    fields = cast("dict[str, Any]", found)
    if not isinstance(found, dict):
        raise Refused(400, f"the body must be a JSON object with {', '.join(kinds)}")
    for field, kind in kinds.items():
        if not isinstance(fields.get(field), kind):
            raise Refused(400, f"the body must have the field {field!r}, which is a {_KINDS.get(kind, kind.__name__)}")
    return fields


_KINDS = {str: "text"}


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > _LARGEST:
        raise Refused(413, f"the body is larger than {_LARGEST} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > _LARGEST:
                    raise Refused(413, f"the body is larger than {_LARGEST} bytes")
    except web.RequestPayloadError:
        raise Refused(400, "the body is malformed") from None
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {_PATIENCE:g} s") from None
    return bytes(body)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")
