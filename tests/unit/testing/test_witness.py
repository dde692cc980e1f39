"""The witness objects to each kind of broken promise, and to nothing else."""

import pytest

from anabranch.testing.simulation.simulator import SimulationError
from anabranch.testing.simulation.witness import Sent, Witness

PLACE = ("t", 0)


def log(*records: tuple[str, int]) -> list[tuple[int, bytes | None]]:
    return [(offset, Sent(*record).encode()) for offset, record in enumerate(records)]


def test_a_kept_promise_is_no_reason_to_object() -> None:
    witness = Witness()
    witness.acknowledged(PLACE, 0, [Sent("plain-1", 0)], -1)
    witness.acknowledged(PLACE, 1, [Sent("plain-1", 2)], 1)
    witness.saw_all(PLACE, log(("plain-1", 0), ("plain-1", 2), ("idempotent-2", 0)))


def test_a_lost_record_is_noticed() -> None:
    witness = Witness()
    witness.acknowledged(PLACE, 0, [Sent("plain-1", 0)], -1)
    with pytest.raises(SimulationError, match="acks=all"):
        witness.saw(PLACE, [])


def test_a_record_that_a_consumer_saw_must_stay() -> None:
    witness = Witness()
    witness.saw(PLACE, log(("plain-1", 0)))
    with pytest.raises(SimulationError, match="was seen"):
        witness.saw(PLACE, log(("plain-9", 0)))


def test_acks_1_is_a_promise_until_the_power_goes() -> None:
    witness = Witness()
    witness.acknowledged(PLACE, 0, [Sent("plain-1", 0)], 1)
    with pytest.raises(SimulationError, match="acks=1"):
        witness.saw_all(PLACE, [])
    witness.power_lost()
    witness.saw_all(PLACE, [])


def test_an_offset_given_twice_is_noticed() -> None:
    witness = Witness()
    witness.acknowledged(PLACE, 0, [Sent("plain-1", 0)], -1)
    with pytest.raises(SimulationError, match="was given to"):
        witness.acknowledged(PLACE, 0, [Sent("plain-2", 0)], -1)


@pytest.mark.parametrize(
    "records",
    [
        [("plain-1", 1), ("plain-1", 0)],
        [("plain-1", 0), ("plain-1", 0)],
        [("idempotent-1", 0), ("idempotent-1", 2)],
        [("idempotent-1", 1)],
    ],
    ids=["disorder", "repeat", "gap", "missing start"],
)
def test_disorder_repeats_and_gaps_are_noticed(records: list[tuple[str, int]]) -> None:
    with pytest.raises(SimulationError, match="follows number"):
        Witness().saw(PLACE, log(*records))


def test_a_deleted_topic_owes_nothing() -> None:
    witness = Witness()
    witness.acknowledged(PLACE, 0, [Sent("plain-1", 0)], -1)
    witness.forget("t")
    witness.saw(PLACE, [])
