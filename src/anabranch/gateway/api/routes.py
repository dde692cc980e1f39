"""The routes of the HTTP port, all of them in one table, behind one doorkeeper."""

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from anabranch.errors import AnabranchError, GatewayError
from anabranch.gateway.api import produce as records_api
from anabranch.gateway.api import read as reading_api
from anabranch.gateway.api import sessions as sessions_api
from anabranch.gateway.api import status as status_api
from anabranch.gateway.api import topics as topics_api
from anabranch.gateway.api import websocket as socket_api
from anabranch.gateway.gateway import Gateway
from anabranch.gateway.http.access import Access
from anabranch.gateway.http.doorkeeper import Doorkeeper
from anabranch.gateway.http.errors import DEFECT_CODE, code_word, error_json, headers_of, status_of

ROUTES = (
    status_api.routes,
    topics_api.routes,
    records_api.routes,
    reading_api.routes,
    sessions_api.routes,
    socket_api.routes,
)
"""One line for each file of routes."""

WORDS = {
    404: (
        "NOT_FOUND",
        "There is nothing here: docs/gateway.md lists what there is, and GET / the most of it.",
    ),
    405: ("METHOD_NOT_ALLOWED", "That method is not served here: the header Allow says which are."),
}


def make_app(gateway: Gateway, access: Access) -> ASGIApp:
    def answer(error: AnabranchError, headers: Mapping[str, str] | None = None) -> Response:
        return Response(error_json(error), status_of(error), headers or headers_of(error), "application/json")

    async def refused(request: Request, error: AnabranchError) -> Response:
        gateway.refusals[code_word(error)] += 1
        return answer(error)

    async def failed(request: Request, error: Exception) -> Response:
        """Answer to any other exception. The doorkeeper counts and logs it if it is a defect: starlette calls this also
        when the client is gone."""
        return answer(GatewayError("A defect of this node: its log says more.", DEFECT_CODE, 500))

    async def not_served(request: Request, error: HTTPException) -> Response:
        code, message = WORDS.get(error.status_code, ("BAD_REQUEST", str(error.detail)))
        gateway.refusals[code] += 1
        return answer(GatewayError(message, code, error.status_code), error.headers)

    routes = [route for each in ROUTES for route in each(gateway)]
    app = Starlette(
        routes=routes,
        exception_handlers={AnabranchError: refused, HTTPException: not_served, 500: failed},  # type: ignore[dict-item]
    )
    app.router.redirect_slashes = False
    timeout_ms = gateway.settings.gateway_request_timeout_ms
    return Doorkeeper(app, access, lambda: gateway.bodies.waiting_count > 0, timeout_ms, gateway.refusals)
