"""`/metrics` for Prometheus, `/healthz`, and `/`, which says what there is."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from anabranch.broker.requests.turns import ROWS_PER_TURN, Turns
from anabranch.gateway.figures import Figures
from anabranch.server.health import health
from anabranch.server.metrics import render

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

HERE = """\
anabranch: records in and out by HTTP and WebSocket. docs/gateway.md says how.

  POST /v1/topics/TOPIC/records                      write records
  GET  /v1/topics/TOPIC/partitions/N/records         read them
  GET  /v1/topics                                    which topics there are
  GET  /v1/ws                                        publish and subscribe by WebSocket
  GET  /v1/anabranch.js  /v1/demo                    a client for browsers, and a page that uses it
  GET  /metrics  /healthz
"""


def routes(gateway: "Gateway") -> list[BaseRoute]:
    turns = Turns()

    async def metrics(request: Request) -> Response:
        await turns.wait(ROWS_PER_TURN)  # It looks at every partition: many at once would hold up everybody.
        return Response(
            render(gateway.broker, gateway.listener, Figures(gateway)),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    async def healthz(request: Request) -> Response:
        is_well, body = health(gateway.broker)
        return Response(body, status_code=200 if is_well else 503, media_type="application/json")

    async def here(request: Request) -> Response:
        return PlainTextResponse(HERE)

    return [Route("/metrics", metrics), Route("/healthz", healthz), Route("/", here)]
