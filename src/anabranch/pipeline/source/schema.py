"""The columns of a topic as Spark sees them, and the check of those that a user names himself; pure.

They are those of Spark's Kafka source, in its order, and two of ours: `_generation`, the leadership under which a
record was written, and `_branch`, the branch it was written to: null where topics have none. A reader with fewer
columns unpacks less.
"""

from collections.abc import Mapping

from anabranch.errors import OptionError

HEADERS = "headers"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
COLUMNS = {
    "key": "binary",
    "value": "binary",
    HEADERS: HEADERS_TYPE,
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "_generation": "int",
    "_branch": "string",
}
"""Names and types as Spark spells them."""


def ddl(*, include_headers: bool) -> str:
    return ", ".join(
        f"`{name}` {kind}" for name, kind in COLUMNS.items() if name != HEADERS or include_headers
    )


def check_columns(named: Mapping[str, str], *, include_headers: bool) -> None:
    """Refuse a schema that asks for what is not there."""
    for name, kind in named.items():
        if name not in COLUMNS:
            raise OptionError(f"A topic has no column {name!r}; it has {', '.join(COLUMNS)}.")
        if name == HEADERS and not include_headers:
            raise OptionError("The column headers needs the option includeHeaders=true.")
        if kind != COLUMNS[name]:
            raise OptionError(f"The column {name} is of type {COLUMNS[name]}, not {kind}.")
    if not named:
        raise OptionError("A schema without columns cannot be read.")
