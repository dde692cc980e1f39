"""The fields of messages on a WebSocket, checked one by one. Pure; every refusal names the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from anabranch.errors import InvalidRequestError
from anabranch.gateway.http.texts import is_text

ID_LENGTH_MAX = 128
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
PARTITIONS_MAX = 1024
GROUP_LENGTH_MAX = 249

Id = str | int


@dataclass(frozen=True, slots=True)
class Start:
    """Where a subscription begins: `kind` is new, earliest, offset or time.

    With `offsets` only the partitions in it are followed, unless `others` says where the rest begins."""

    kind: str
    offset: int = 0
    offsets: Mapping[int, int] | None = None
    others: str | None = None
    time_ms: int = 0


def id_of(given: Mapping[str, Any]) -> Id | None:
    """The id, if it is one: what an error about this message is answered with."""
    found = given.get("id")
    if isinstance(found, str):
        return found if len(found) <= ID_LENGTH_MAX and is_text(found) else None
    return found if _is_whole(found) and abs(found) <= OFFSET_MAX else None


def own_id(given: Mapping[str, Any]) -> Id:
    found = id_of(given)
    if found is None:
        raise InvalidRequestError(
            f"id is neither a whole number nor a text of at most {ID_LENGTH_MAX} characters."
        )
    return found


def topic_field(given: Mapping[str, Any], default: str | None) -> str:
    topic = given.get("topic", default)
    if not is_text(topic) or not topic:
        raise InvalidRequestError("topic is not the name of a topic.")
    return topic


def group_field(group: object) -> str | None:
    if group is None:
        return None
    if not is_text(group) or not 0 < len(group) <= GROUP_LENGTH_MAX:
        raise InvalidRequestError(f"group is not a name of 1 to {GROUP_LENGTH_MAX} characters.")
    return group


def partitions_field(given: object) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not 0 < len(given) <= PARTITIONS_MAX:
        raise InvalidRequestError(f"partitions is not a list of 1 to {PARTITIONS_MAX} partitions.")
    if not all(_is_whole(each) and 0 <= each < 2**31 for each in given):
        raise InvalidRequestError("partitions holds something that is not the number of a partition.")
    if len(set(given)) != len(given):
        raise InvalidRequestError("partitions names a partition twice.")
    return tuple(given)


def start_field(given: object) -> Start:
    if given in ("new", "earliest"):
        return Start(str(given))
    if isinstance(given, dict):
        if given.keys() == {"offset"} or given.keys() == {"offset", "others"}:
            return _offset_start(given["offset"], given.get("others"))
        if given.keys() == {"time"}:
            return Start("time", time_ms=_time_ms(given["time"]))
    raise InvalidRequestError('from is none of "new", "earliest", {"offset": ...}, {"time": ...}.')


def _offset_start(given: object, others: object) -> Start:
    if others not in (None, "new", "earliest"):
        raise InvalidRequestError('from.others is neither "new" nor "earliest".')
    if not isinstance(given, dict):
        return Start("offset", offset=offset_field(given, "from.offset"))
    if not 0 < len(given) <= PARTITIONS_MAX or not all(_is_partition(key) for key in given):
        raise InvalidRequestError(f"from.offset names not 1 to {PARTITIONS_MAX} partitions by their numbers.")
    offsets = {int(key): offset_field(each, f"from.offset.{key}") for key, each in given.items()}
    return Start("offset", offsets=offsets, others=str(others) if others is not None else None)


def _is_partition(key: str) -> bool:
    return key.isascii() and key.isdigit() and str(int(key[:11])) == key and int(key) < 2**31


def _time_ms(given: object) -> int:
    if _is_whole(given) and 0 <= given <= OFFSET_MAX:
        return given
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return max(0, round(moment.timestamp() * 1000))
    raise InvalidRequestError(
        "from.time is neither milliseconds since 1970 nor a time such as 2026-05-01T12:00:00Z, with its zone."
    )


def offset_field(given: object, place: str) -> int:
    """Texts are the rule; a whole number is as good as long as JSON kept it exact."""
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 19:
        given = int(given)
    if not _is_whole(given) or not 0 <= given <= OFFSET_MAX:
        raise InvalidRequestError(f'{place} is not an offset, such as "41".')
    return given


def whole_field(given: Mapping[str, Any], name: str, least: int, most: int) -> int:
    number = given.get(name)
    if not _is_whole(number) or not least <= number <= most:
        raise InvalidRequestError(f"{name} is not a whole number from {least} to {most}.")
    return number


def _is_whole(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)
