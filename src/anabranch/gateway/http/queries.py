"""What stands behind the `?` of a request, checked: a mistake is told with the name of the parameter."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from starlette.requests import Request

from anabranch.errors import GatewayError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DIGITS_MAX = 20
FIELDS_MAX = 50


def check_known(request: Request, known: Iterable[str]) -> None:
    """Raises GatewayError if there is another parameter, one that is no text, or one twice."""
    names = tuple(known)
    try:
        given = parse_qsl(
            request.scope["query_string"].decode("ascii"), True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except UnicodeDecodeError as error:
        raise GatewayError(
            f"What stands behind ? is not UTF-8: 0x{error.object[error.start]:02x} is no letter of it. Write other "
            "bytes in base64.",
            "WRONG_UTF8",
        ) from None
    except ValueError:
        raise wrong(f"There are more than {FIELDS_MAX} parameters.") from None
    twice = next((name for name, count in Counter(name for name, _ in given).items() if count > 1), None)
    if twice is not None:
        raise wrong(f"The parameter {twice[:40]} is there twice: send one.")
    for name in request.query_params:
        if name not in names and name != "access_token":
            raise wrong(f"There is no parameter {name} here: there are {', '.join(names)}.")


def whole(text: str, name: str, high: int = INT_MAX) -> int:
    """A number as it should be written: digits alone."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX) or int(text) > high:
        raise wrong(f"{name}={text[:40]} is not a whole number from 0 to {high}.")
    return int(text)


def whole_or(request: Request, name: str, default: int, high: int = INT_MAX) -> int:
    text = request.query_params.get(name)
    return default if text is None else whole(text, name, high)


def whole_or_none(request: Request, name: str, high: int = INT_MAX) -> int | None:
    text = request.query_params.get(name)
    return None if text is None else whole(text, name, high)


def one_of(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """One of them, by default the first."""
    text = request.query_params.get(name, choices[0])
    if text not in choices:
        raise wrong(f"{name}={text[:40]} is not known: take one of {', '.join(choices)}.")
    return text


def time_ms(text: str, name: str) -> int:
    """Milliseconds since 1970, or a date and time as ISO 8601 writes them; without a zone they are UTC."""
    if text.isascii() and text.isdigit():
        return whole(text, name, LONG_MAX)
    try:
        moment = datetime.fromisoformat(
            text.replace(" ", "+") if "T" in text else text
        )  # + is a space in URLs.
    except ValueError:
        raise wrong(
            f"{name}={text[:40]} is no time: write milliseconds since 1970, or 2026-01-31T12:00:00Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise wrong(f"{name}={text[:40]} lies before 1970.")
    return milliseconds


def wrong(message: str) -> GatewayError:
    return GatewayError(message, "INVALID_PARAMETER")
