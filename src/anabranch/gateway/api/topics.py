"""`GET /v1/topics`: which topics there are. `GET /v1/topics/{topic}`: its partitions, who leads them, where they begin
and end, and what it has set for itself."""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from anabranch.broker.requests.turns import ROWS_PER_TURN
from anabranch.errors import AnabranchError
from anabranch.gateway.calls import EARLIEST, LATEST
from anabranch.gateway.http.errors import error_body
from anabranch.gateway.http.queries import check_known, whole_or
from anabranch.gateway.http.responses import JsonAnswer

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

Place = tuple[int, int] | AnabranchError
"""An offset with its time, or why it is not known."""
PATIENCE_MS = 2000
PAGE_DEFAULT, PAGE_MAX = 1000, 10_000


def routes(gateway: "Gateway") -> list[BaseRoute]:
    topics = TopicList(gateway)
    return [
        Route("/v1/topics", topics.all, methods=["GET"]),
        Route("/v1/topics/{topic}", topics.one, methods=["GET"]),
    ]


class TopicList:
    def __init__(self, gateway: "Gateway") -> None:
        self._calls = gateway.calls

    async def all(self, request: Request) -> Response:
        """A page of them by name, from the one behind `after` on."""
        check_known(request, ("after", "max"))
        after = request.query_params.get("after", "")
        count = max(1, min(whole_or(request, "max", PAGE_DEFAULT), PAGE_MAX))
        views = [view for view in self._calls.topics() if not view.is_internal and view.name > after]
        page: dict[str, Any] = {
            "topics": [{"name": view.name, "partitions": view.partition_count} for view in views[:count]]
        }
        if len(views) > count:
            page["next_after"] = views[count - 1].name
        return JsonAnswer(page)

    async def one(self, request: Request) -> Response:
        check_known(request, ())
        view = await self._calls.topic(request.path_params["topic"])
        indexes = range(view.partition_count)
        starts, ends = [
            await self._calls.list_offsets_of(view.name, indexes, which, patience_ms=PATIENCE_MS)
            for which in (EARLIEST, LATEST)
        ]
        await self._calls.turns.wait(ROWS_PER_TURN)
        return JsonAnswer(
            {
                "name": view.name,
                "topic_id": str(view.topic_id),
                "configs": dict(view.settings.overrides),
                "partitioner": view.settings.anabranch_partitioner,
                "partitions": [self._row(view.name, index, starts[index], ends[index]) for index in indexes],
            }
        )

    def _row(self, topic: str, index: int, start: Place, end: Place) -> dict[str, Any]:
        """A partition that nobody leads says why it has no offsets; the others are told all the same."""
        row: dict[str, Any] = {"partition": index}
        try:
            row["leader"] = self._calls.leader(topic, index)
        except AnabranchError as error:
            return row | error_body(error)
        for name, place in (("start_offset", start), ("end_offset", end)):
            if isinstance(place, AnabranchError):
                return row | error_body(place)
            row[name] = str(place[0])
        return row
