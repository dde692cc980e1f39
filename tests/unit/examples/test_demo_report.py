"""What the demo says at its end."""

import io
from pathlib import Path

import pyarrow as pa
from examples.demo.figures import Figures
from examples.demo.plot import draw
from examples.demo.report import Hour, differing, figures_table, hours_of, hours_table, look_next
from rich.console import Console

GROUPS = pa.table(
    {
        "origin": ["EWR", "JFK", "EWR", "LGA"],
        "sky": ["clear", "rain or snow", "clear", "unknown"],
        "hour": [6, 6, 20, 1],
        "flights": [200, 300, 400, 1],
        "departed": [200, 290, 380, 0],
        "delay_sum": [-100, 590, 9_500, 0],
        "late": [2, 8, 190, 0],
    }
)
SOURCE = Figures(336_776, 4_152_200, 8_255)


def shown(part: object) -> str:
    text = io.StringIO()
    Console(width=120, file=text).print(part)
    return text.getvalue()


def test_hours_are_summed_over_airports_and_weather() -> None:
    assert hours_of(GROUPS) == [
        Hour(1, 1, 0, 0, 0), Hour(6, 500, 490, 490, 10), Hour(20, 400, 380, 9_500, 190)
    ]  # fmt: skip


def test_an_hour_without_departures_has_no_mean() -> None:
    line = next(
        line for line in shown(hours_table(hours_of(GROUPS))).splitlines() if line.split()[:1] == ["01"]
    )
    assert line.split() == ["01", "1", "1", "-", "-"]


def test_equal_figures_are_shown_without_a_word() -> None:
    stages = {"file": SOURCE, "table": SOURCE}
    assert differing(stages) == []
    assert "4,152,200" in shown(figures_table(stages))
    assert "differs" not in shown(figures_table(stages))


def test_a_table_that_lacks_a_row_is_named() -> None:
    stages = {"file": SOURCE, "table": SOURCE._replace(rows=336_775)}
    assert differing(stages) == ["table"]
    assert "differs" in shown(figures_table(stages))


def test_commands_to_try_name_the_node_if_it_is_not_on_the_usual_port() -> None:
    assert "topic list --bootstrap 127.0.0.1:1234" in look_next(
        " --bootstrap 127.0.0.1:1234", Path("d"), running=True
    )


def test_plot_is_a_picture(tmp_path: Path) -> None:
    draw(GROUPS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")
