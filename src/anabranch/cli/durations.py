"""How long something is, as people write it: `90s`, `15m`, `2h`, `7d`."""

import re
from collections.abc import Callable

import click

from anabranch.cli.common import Function

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_option(name: str, default: str, help_text: str) -> Callable[[Function], Function]:
    """An option that arrives as a number of seconds."""
    return click.option(
        name, default=default, show_default=True, metavar="DURATION", callback=_seconds, help=help_text
    )


def _seconds(_: click.Context, parameter: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text, re.ASCII)
    if found is None:
        raise click.BadParameter(
            f"{text} is no duration: write seconds, minutes, hours or days as 90s, 15m, 2h or 7d.",
            param=parameter,
        )
    return float(int(found[1]) * _UNITS[found[2]])
