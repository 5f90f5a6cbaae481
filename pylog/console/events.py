"""Server-sent events: pages that change while they are open.

Owns: the number of open streams of each user.
Invariants: a user has at most LIVE_PAGES_MAX streams, in all sessions together; when the browser
  leaves, the stream's source is cancelled at once; numbers of records are sent as text, so that no
  script rounds them.
Source: HTML Living Standard, server-sent events.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from pylog.client.errors import KafkaError
from pylog.config.console_access import NONE
from pylog.console.pages import PageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LIVE_PAGES_MAX = 64


def event(name: str, data: dict[str, Any]) -> bytes:
    """Return one event. JSON has no line ends, so the data is a single line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def stream(request: Request, events: AsyncGenerator[bytes, None]) -> Response:
    """Return a response that sends events until they end or the browser leaves.

    A failure becomes an event `error` with the three parts of an error page. Raises PageError if
    the user has too many streams. Without a login, each session counts as a user.
    """
    session, console = request.state.session, request.app.state.console
    streams = console.streams
    user = session.id if console.auth == NONE else session.principal
    if streams[user] >= LIVE_PAGES_MAX:
        raise PageError(429, "Too many live pages are open", str(streams[user]),
                        "Close some of them, then reload this page.")

    async def counted() -> AsyncGenerator[bytes, None]:
        session.streams += 1
        streams[user] += 1
        try:
            async with contextlib.aclosing(events) as source:
                try:
                    async for one in source:
                        yield one
                except KafkaError as failure:
                    yield event("error", {"failed": "The cluster could not answer",
                                          "value": str(failure) or type(failure).__name__,
                                          "remedy": "Check that the brokers are running, then "
                                          "reload the page."})
                except PageError as failure:
                    yield event("error", {"failed": failure.failed, "value": failure.value,
                                          "remedy": failure.remedy})
        finally:
            session.streams -= 1
            streams[user] -= 1
            if not streams[user]:
                del streams[user]

    return ClosingResponse(counted(), media_type="text/event-stream", headers={
        "X-Accel-Buffering": "no"})


class ClosingResponse(StreamingResponse):
    """Closes its source when the browser leaves, also between two parts."""

    def __init__(self, source: AsyncGenerator[bytes, None], **more: Any):
        super().__init__(source, **more)
        self._source = source

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(self._source):
            await super().__call__(scope, receive, send)
