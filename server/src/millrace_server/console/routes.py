"""The console's paths: its files, its session, and its API."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.control import AccessControl
from millrace_server.agent.components import Component
from millrace_server.console.acts import ACTS, Operator
from millrace_server.console.calls import READ, Calls, RefusedError
from millrace_server.console.channel_page import ChannelPage
from millrace_server.console.configuration import sections_of
from millrace_server.console.documents import document_of
from millrace_server.console.event_stream import EventStream
from millrace_server.console.events import (
    Describe,
    EventsQuery,
    FollowQuery,
    LinesQuery,
    browse,
    describe_matching,
    follow,
    line_of_matching,
)
from millrace_server.console.flow import LiveFlow
from millrace_server.console.gate import Gate, Serve
from millrace_server.console.history import History, channel_key, rate_of_component
from millrace_server.console.login import Login
from millrace_server.console.overview import Overview, OverviewQuery
from millrace_server.console.queries import body_of, query_of
from millrace_server.console.readings import ShownServer
from millrace_server.console.static_files import INDEX, PageFiles
from millrace_server.errors import OverloadedError
from millrace_server.grpc_services.admin_messages import component_message
from millrace_server.grpc_services.guard import Authorizations

CHANGING_PATHS = ("/api/acts/", "/session")
"""The beginnings of the paths whose requests may change something."""

_FOLLOWERS_MAX = 50


class HistoryQuery(BaseModel, extra="forbid"):
    """How much of the last hour is shown."""

    points: Annotated[int, Field(ge=2, le=360)] = 360


class Console:
    """The console of a server."""

    def __init__(self, shown: ShownServer, calls: Calls, access: AccessControl | None) -> None:
        self._shown = shown
        self._calls = calls
        self._gate = Gate(access, has_tls=shown.has_tls)
        self._login = Login(access, self._gate, has_tls=shown.has_tls)
        self._overview = Overview(shown)
        self._channel_page = ChannelPage(shown, calls)
        self._flow = LiveFlow(shown)
        self._sampling: asyncio.Task[None] | None = None
        self._followers: set[asyncio.Task[Any] | None] = set()
        self._files = PageFiles()

    def authorizations_of(self, request: HTTPConnection) -> Authorizations:
        """See `Gate.authorizations_of`."""
        return self._gate.authorizations_of(request)

    def start(self) -> None:
        """Starts to sample the history."""
        self._sampling = asyncio.create_task(self._shown.history.follow())

    def stop(self) -> None:
        """Stops sampling, and ends all event streams."""
        for task in (self._sampling, *self._followers):
            if task is not None:
                task.cancel()

    def routes(self) -> list[BaseRoute]:
        endpoint, page = self._gate.endpoint, self._page
        channel = "/api/channels/{name}"
        return [
            Route("/", self._get_file),
            Route("/console/{path:path}", self._get_file),
            Route("/api/session", endpoint(self._login.describe)),
            Route("/session", endpoint(self._login.begin), methods=["POST"]),
            Route("/session", endpoint(self._login.end), methods=["DELETE"]),
            Route("/api/overview", page(self._describe_overview)),
            Route("/api/flow", page(self._describe_flow)),
            Route("/api/components", page(self._describe_components)),
            Route("/api/configuration", page(self._describe_configuration)),
            Route(channel, page(self._describe_channel)),
            Route(f"{channel}/history", page(self._describe_history)),
            Route(f"{channel}/events", endpoint(self._get_events)),
            Route(f"{channel}/dead_letters", endpoint(self._get_dead_letters)),
            Route(f"{channel}/follow", endpoint(self._follow)),
            Route("/channels/{name}/events", endpoint(self._get_lines)),
            Route("/api/acts/{act}", endpoint(self._act), methods=["POST"]),
        ]

    async def _get_file(self, request: Request) -> Response:
        return self._files.response(request, request.path_params.get("path", INDEX))

    def _page(self, document: Callable[[Request], Awaitable[dict[str, Any]]]) -> Serve:
        """Returns an endpoint that shows a document to those who may see all channels."""

        async def serve(request: Request) -> Response:
            with self._calls.admitted(request, READ):
                return JSONResponse(await document(request))

        return self._gate.endpoint(serve)

    async def _describe_overview(self, request: Request) -> dict[str, Any]:
        return await self._overview.document(query_of(request, OverviewQuery))

    async def _describe_flow(self, _request: Request) -> dict[str, Any]:
        return self._flow.document()

    async def _describe_components(self, _request: Request) -> dict[str, Any]:
        components = [component_document(one, self._shown.history) for one in self._shown.components]
        return {"time": time.time(), "components": components}

    async def _describe_configuration(self, _request: Request) -> dict[str, Any]:
        return {"sections": sections_of(self._shown.settings())}

    async def _describe_channel(self, request: Request) -> dict[str, Any]:
        return await self._channel_page.document(request, request.path_params["name"])

    async def _describe_history(self, request: Request) -> dict[str, Any]:
        handle, history = self._shown.registry.find(request.path_params["name"]), self._shown.history
        span = history.span(channel_key(handle.name), query_of(request, HistoryQuery).points)
        return {"interval_seconds": history.interval_seconds} | span._asdict()

    async def _get_events(self, request: Request) -> Response:
        query = query_of(request, EventsQuery)
        return await self._browse(request, query, describe_matching(query))

    async def _get_lines(self, request: Request) -> Response:
        query = query_of(request, LinesQuery)
        return await self._browse(request, query, line_of_matching(query), respond=_lines)

    async def _get_dead_letters(self, request: Request) -> Response:
        # It imports the client, which a server without dead letters does not need.
        from millrace_server.console.dead_letters import DeadLettersQuery, describe_letters

        query = query_of(request, DeadLettersQuery)
        return await self._browse(request, query, describe_letters(query))

    async def _browse(
        self,
        request: Request,
        query: EventsQuery,
        describe: Describe,
        respond: Callable[[dict[str, Any]], Response] = JSONResponse,
    ) -> Response:
        name = request.path_params["name"]
        with self._calls.admitted(request, "PeekEvents", pb.PeekEventsRequest(channel=name)) as call:
            call.admit(0)
            response = respond(await browse(self._shown.registry.get(name), query, describe))
            if (responses := call.quota.responses) is not None:
                responses.count(len(response.body))
            return response

    async def _act(self, request: Request) -> Response:
        kind = ACTS.get(name := request.path_params["act"])
        if kind is None:
            raise RefusedError(404, "NOT_FOUND", f"there is no act {name[:64]!a}; there are {', '.join(ACTS)}")
        act = await body_of(request, kind)
        act.check_confirmed()
        return JSONResponse(await act.carry_out(Operator(request, self._calls, self._shown.registry)))

    async def _follow(self, request: Request) -> Response:
        query, peek = query_of(request, FollowQuery), pb.PeekEventsRequest(channel=request.path_params["name"])
        with self._calls.admitted(request, "PeekEvents", peek):
            self._shown.registry.get(peek.channel)
            if len(self._followers) >= _FOLLOWERS_MAX:
                raise OverloadedError(f"{_FOLLOWERS_MAX} pages follow channels; close one of them")
        return EventStream(self._followed(request, peek, describe_matching(query)))

    async def _followed(
        self, request: Request, peek: pb.PeekEventsRequest, describe: Describe
    ) -> AsyncGenerator[dict[str, Any] | None]:
        """Yields messages while the caller is permitted to read them; see `GuardedCall`."""
        follower = asyncio.current_task()
        self._followers.add(follower)
        try:
            with self._calls.admitted(request, "PeekEvents", peek):
                async with aclosing(follow(self._shown.registry.get(peek.channel), describe)) as messages:
                    async for message in messages:
                        yield message
        finally:
            self._followers.discard(follower)


def _lines(found: dict[str, Any]) -> Response:
    lines = (json.dumps(event, ensure_ascii=False) + "\n" for event in found["events"])
    return Response("".join(lines), media_type="application/x-ndjson")


def component_document(component: Component, history: History) -> dict[str, Any]:
    """Returns what the console shows of a component."""
    document = document_of(component_message(component))
    counters: dict[str, Any] = document.pop("counters")
    rate = rate_of_component(history, component)
    return document | counters | {"event_rate": rate, "channels": list(component.channels)}
