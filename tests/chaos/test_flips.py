"""A handful of flips under running nodes; `make flips` has as many as you like."""

from pathlib import Path

from chaos.flips import Flips, ring_site, solo_site


def test_no_flipped_byte_is_served_and_no_neighbour_is_lost(tmp_path: Path) -> None:
    with solo_site(tmp_path / "solo") as solo, ring_site(tmp_path / "ring") as ring:
        flips = Flips([solo, ring], 1, ["kafka", "http", "websocket", "session", "spark"])
        flips.run(10)
    sums = flips.sums
    assert (sums["wrong"], sums["lost"], sums["counted"], sums["repaired"]) == (0, 0, 10, 5), flips.report()
