"""NameObjects, version 0, ours: names for objects that a job is going to store (`broker.object.replacements`)."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.errors import AnabranchError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.replacements import ObjectReplacements


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        names = replacements_of(broker).name(request["count"])
    except AnabranchError as error:
        return {**refused(error), "names": []}
    return {**accepted(), "names": [each.name for each in names]}


def replacements_of(broker: "Broker") -> "ObjectReplacements":
    """Raises InvalidRequestError at a broker without an object store."""
    if broker.objects is None:
        raise InvalidRequestError("This broker has no object store: start it with --object-store.")
    return broker.objects.replacements
