"""What a broker does with what it has gathered: when it is stored, in which order it is proposed, and what fails."""

from collections.abc import Sequence

from anabranch.modes.object.events import (
    Answer,
    Applied,
    Arrived,
    Effect,
    Event,
    Fail,
    Jumped,
    NameTaken,
    ProposalEnded,
    Propose,
    Reason,
    Refuse,
    Registered,
    Stop,
    Store,
    StoreAnswers,
    Stored,
    StoreFailed,
    Take,
    Tick,
)
from anabranch.modes.object.writer import (
    APPLIED_MS_MAX,
    GATHER_BATCHES_MAX,
    GIVE_UP_MS,
    PROPOSAL_BATCHES_MAX,
    PROPOSAL_SEGMENTS_MAX,
    STORE_AGAIN_MS_MAX,
    Limits,
    ObjectWriter,
)
from anabranch.values import SegmentState

LIMITS = Limits(gather_ms=100, gather_bytes=1000, puts_max=2, held_bytes_max=5000)
FULL = 1000
EPOCH = 40


class Bench:
    """A writer and its clock."""

    def __init__(self, limits: Limits = LIMITS, epoch: int | None = EPOCH) -> None:
        self.writer = ObjectWriter(limits, lambda limit: limit - 1)
        self.now_ms = 5000
        if epoch is not None:
            self.do(Registered(epoch))

    def do(self, *events: Event) -> list[Effect]:
        return [effect for event in events for effect in self.writer.step(event, self.now_ms)]

    def wait(self, milliseconds: int) -> list[Effect]:
        """As the driver does: a Tick whenever one is due."""
        end_ms, effects = self.now_ms + milliseconds, []
        while (due_ms := self.writer.due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            effects += self.do(Tick())
        self.now_ms = end_ms
        return effects

    def full(self, count: int) -> list[Effect]:
        """So many segments that are full at once."""
        return self.do(*[Arrived(FULL)] * count)

    def states(self) -> list[SegmentState]:
        return [each.state for each in self.writer.describe(self.now_ms)]


def of_kind(kind: type, effects: Sequence[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def proposed(effects: Sequence[Effect]) -> Sequence[tuple[int, int | None]]:
    (propose,) = of_kind(Propose, effects)
    assert isinstance(propose, Propose)
    return propose.commits


# --- gathering -------------------------------------------------------------------------------------------------------


def test_batches_gather_in_one_segment_until_it_is_old_enough() -> None:
    bench = Bench()
    assert bench.do(Arrived(10), Arrived(20)) == [Take(1), Take(1)]
    assert bench.wait(99) == []
    assert bench.states() == [SegmentState.ACTIVE]
    assert bench.wait(1) == [Store(1, 0)]
    assert bench.states() == [SegmentState.FLUSHING]


def test_a_segment_that_is_large_enough_is_stored_at_once_and_the_next_begins() -> None:
    bench = Bench()
    assert bench.do(Arrived(999)) == [Take(1)]
    assert bench.do(Arrived(1), Arrived(1)) == [Take(1), Store(1, 0), Take(2)]


def test_one_huge_batch_is_a_segment_by_itself() -> None:
    bench = Bench()
    assert bench.do(Arrived(10**9)) == [Take(1), Store(1, 0)]


def test_a_segment_has_no_more_batches_than_a_commit_may_carry() -> None:
    bench = Bench()
    effects = bench.do(*[Arrived(0)] * GATHER_BATCHES_MAX)
    assert effects[-1] == Store(1, 0)
    assert of_kind(Store, effects) == [Store(1, 0)]


def test_what_waits_for_a_free_place_at_the_store_grows_instead_of_getting_old() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Arrived(10))
    assert bench.wait(1000) == []
    bench.do(Arrived(10))
    assert bench.states() == [SegmentState.FLUSHING, SegmentState.FLUSHING, SegmentState.ACTIVE]
    assert of_kind(Store, bench.do(Stored(2))) == [Store(3, 2)]


def test_nothing_is_stored_before_the_broker_is_registered() -> None:
    bench = Bench(epoch=None)
    bench.full(1)
    bench.do(Arrived(1))
    assert bench.wait(1000) == []
    assert bench.do(Registered(EPOCH)) == [Store(1, 0), Store(2, 1)]


# --- storing ---------------------------------------------------------------------------------------------------------


def test_no_more_are_stored_at_once_than_the_setting_says() -> None:
    bench = Bench()
    assert of_kind(Store, bench.full(4)) == [Store(1, 0), Store(2, 1)]
    assert bench.states() == [SegmentState.FLUSHING] * 2 + [SegmentState.SEALED] * 2
    assert of_kind(Store, bench.do(Stored(2))) == [Store(3, 2)]
    assert of_kind(Store, bench.do(Stored(1))) == [Store(4, 3)]


def test_a_failed_try_is_made_again_under_the_same_number_after_growing_pauses() -> None:
    bench = Bench()
    bench.full(1)
    pauses = []
    for _ in range(8):
        began_ms = bench.now_ms
        assert bench.do(StoreFailed(1)) == []
        while not (effects := bench.wait(1)):
            pass
        assert effects == [Store(1, 0)]
        pauses.append(bench.now_ms - began_ms)
    assert pauses[:4] == [100, 200, 400, 800]
    assert pauses[-1] == STORE_AGAIN_MS_MAX


def test_a_success_after_failures_counts_as_any_other() -> None:
    bench = Bench()
    bench.full(1)
    bench.do(StoreFailed(1))
    bench.wait(100)
    assert proposed(bench.do(Stored(1))) == [(0, 1)]
    assert bench.wait(GIVE_UP_MS) == []


# --- proposing -------------------------------------------------------------------------------------------------------


def test_one_success_is_reason_to_try_the_others_again_at_once() -> None:
    bench = Bench()
    bench.full(2)
    for _ in range(4):
        bench.do(StoreFailed(1))
        bench.wait(STORE_AGAIN_MS_MAX)
    assert bench.do(StoreFailed(1)) == []
    assert of_kind(Store, bench.do(Stored(2))) == [Store(1, 0)]


def test_a_store_that_answers_anybody_is_tried_again_at_once_and_with_short_pauses() -> None:
    bench = Bench()
    bench.full(2)
    for _ in range(6):
        bench.do(StoreFailed(1), StoreFailed(2))
        bench.wait(STORE_AGAIN_MS_MAX)
    assert bench.do(StoreFailed(1)) == []
    assert bench.do(StoreAnswers()) == [Store(1, 0)]  # The other one is under way.
    assert bench.do(StoreFailed(2)) == []
    assert bench.wait(100) == [Store(2, 1)]


def test_nothing_is_proposed_before_it_is_stored() -> None:
    bench = Bench()
    assert of_kind(Propose, bench.full(1) + bench.wait(50)) == []
    assert bench.do(Stored(1)) == [Propose(1, [(0, 1)])]


def test_segments_stored_out_of_order_are_proposed_in_order() -> None:
    bench = Bench()
    bench.full(2)
    assert bench.do(Stored(2)) == []
    assert bench.do(Stored(1)) == [Propose(1, [(0, 1), (1, 2)])]


def test_one_proposal_is_under_way_at_a_time_and_the_next_has_all_that_is_ready() -> None:
    bench = Bench()
    bench.full(4)
    bench.do(Stored(1))
    assert of_kind(Propose, bench.do(Stored(2), Stored(3), Stored(4))) == []
    assert bench.do(Applied(0)) == [Answer(1), Propose(2, [(1, 2), (2, 3), (3, 4)])]


def test_a_proposal_is_bounded_but_never_empty() -> None:
    bench = Bench(LIMITS._replace(gather_bytes=10**9, puts_max=10**9))
    for _ in range(3):
        bench.do(*[Arrived(0)] * (PROPOSAL_BATCHES_MAX // 2 + 1))
        bench.wait(100)
    bench.do(Stored(2), Stored(3))
    assert proposed(bench.do(Stored(1))) == [(0, 1)]
    many = Bench(LIMITS._replace(puts_max=10**9, held_bytes_max=10**9))
    many.full(PROPOSAL_SEGMENTS_MAX + 2)
    many.do(*[Stored(each) for each in range(2, PROPOSAL_SEGMENTS_MAX + 3)])
    assert len(proposed(many.do(Stored(1)))) == PROPOSAL_SEGMENTS_MAX


def test_a_proposal_whose_fate_is_unknown_is_made_again_with_what_is_ready_by_then() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Stored(1))
    assert bench.do(ProposalEnded(1, is_agreed=False), Stored(2)) == []
    assert proposed(bench.wait(50)) == [(0, 1), (1, 2)]


def test_what_the_first_of_two_equal_proposals_brought_about_is_answered_once() -> None:
    bench = Bench()
    bench.full(1)
    bench.do(Stored(1), ProposalEnded(1, is_agreed=False))
    bench.wait(50)
    assert bench.do(Applied(0)) == [Answer(1)]
    assert bench.do(ProposalEnded(2, is_agreed=True), Applied(0)) == []
    assert bench.wait(APPLIED_MS_MAX) == []


def test_a_proposal_that_is_agreed_on_is_not_made_again_while_it_is_on_its_way_here() -> None:
    bench = Bench()
    bench.full(1)
    bench.do(Stored(1), ProposalEnded(1, is_agreed=True))
    assert bench.wait(APPLIED_MS_MAX - 1) == []
    assert proposed(bench.wait(1)) == [(0, 1)]


def test_the_end_of_an_earlier_proposal_says_nothing_about_the_present_one() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Stored(1), Applied(0), Stored(2))
    bench.do(ProposalEnded(1, is_agreed=False))
    assert bench.wait(5000) == []


def test_an_answer_follows_from_applying_alone() -> None:
    bench = Bench()
    bench.full(1)
    assert bench.do(Stored(1), ProposalEnded(1, is_agreed=True)) == [Propose(1, [(0, 1)])]
    assert bench.do(Applied(0)) == [Answer(1)]
    assert bench.writer.is_idle
    assert (bench.writer.held_bytes, bench.writer.flushed_segments, bench.writer.flushed_bytes) == (
        0,
        1,
        FULL,
    )


# --- giving up -------------------------------------------------------------------------------------------------------


def fail_for_long(bench: Bench, serial: int) -> list[Effect]:
    effects: list[Effect] = []
    for _ in range(GIVE_UP_MS // 1000 + 20):
        effects += bench.do(StoreFailed(serial))
        effects += bench.wait(1000)
        if of_kind(Fail, effects):
            return effects
    raise AssertionError("it is never given up")


def test_a_segment_that_cannot_be_stored_takes_everything_behind_it_along() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(Stored(2), Arrived(5))
    effects = fail_for_long(bench, 1)
    assert of_kind(Fail, effects) == [Fail(each, Reason.STORE_AWAY) for each in (1, 2, 3, 4)]
    assert proposed(effects) == [(0, None), (1, None), (2, None)]
    assert bench.writer.held_bytes == 0


def test_what_is_before_the_segment_that_is_given_up_goes_on() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Stored(1))
    effects = fail_for_long(bench, 2)
    assert of_kind(Fail, effects) == [Fail(2, Reason.STORE_AWAY)]
    assert bench.do(Applied(0)) == [Answer(1), Propose(2, [(1, None)])]
    assert bench.do(Applied(1)) == []
    assert (bench.writer.is_idle, bench.writer.void_numbers) == (True, 1)


def test_new_segments_go_on_behind_the_void_numbers() -> None:
    bench = Bench()
    bench.full(1)
    fail_for_long(bench, 1)
    assert of_kind(Store, bench.full(1)) == [Store(2, 1)]
    assert bench.do(Stored(2)) == []
    assert bench.do(Applied(0)) == [Propose(2, [(1, 2)])]


def test_a_store_that_answers_too_late_changes_nothing() -> None:
    bench = Bench()
    bench.full(1)
    fail_for_long(bench, 1)
    assert bench.do(Stored(1), StoreFailed(1)) == []
    assert proposed_after_applying(bench) == []


def proposed_after_applying(bench: Bench) -> list[Effect]:
    return bench.do(Applied(0)) + bench.wait(1000)


def test_a_name_that_means_something_else_is_given_up_at_once() -> None:
    bench = Bench()
    bench.full(2)
    effects = bench.do(NameTaken(1))
    assert effects[:2] == [Fail(1, Reason.STORE_AWAY), Fail(2, Reason.STORE_AWAY)]
    assert proposed(effects) == [(0, None), (1, None)]
    assert bench.do(NameTaken(1)) == []


def test_patience_begins_with_the_first_failure_and_ends_with_success() -> None:
    bench = Bench()
    bench.full(1)
    bench.wait(GIVE_UP_MS)  # A large object on a slow link.
    bench.do(StoreFailed(1))
    assert of_kind(Fail, bench.wait(GIVE_UP_MS - 1)) == []
    assert of_kind(Fail, bench.do(Stored(1)) + bench.wait(10_000)) == []


# --- fenced, registered anew -----------------------------------------------------------------------------------------


def test_a_fenced_broker_fails_what_is_open_and_takes_nothing() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(Stored(1), Arrived(1))
    effects = bench.do(Registered(EPOCH, is_fenced=True))
    assert effects == [Fail(each, Reason.NOT_REGISTERED) for each in (1, 2, 3, 4)]
    assert bench.do(Arrived(1)) == [Refuse(Reason.NOT_REGISTERED)]
    assert bench.wait(60_000) == []


def test_a_broker_that_is_fenced_no_more_makes_its_open_numbers_void_and_goes_on() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Registered(EPOCH, is_fenced=True))
    assert proposed(bench.do(Registered(EPOCH))) == [(0, None), (1, None)]
    assert bench.do(Applied(0), Applied(1)) == []
    assert of_kind(Store, bench.full(1)) == [Store(3, 2)]


def test_a_commit_that_does_not_count_is_made_void_with_all_behind_it() -> None:
    bench = Bench()
    bench.full(2)
    bench.do(Stored(1))
    effects = bench.do(Applied(0, counts=False))
    assert effects[:2] == [Fail(1, Reason.NOT_REGISTERED), Fail(2, Reason.NOT_REGISTERED)]
    assert proposed(effects) == [(0, None), (1, None)]


def test_a_proposal_from_before_the_fence_may_still_count() -> None:
    bench = Bench()
    bench.full(1)
    bench.do(Stored(1), Registered(EPOCH, is_fenced=True), Registered(EPOCH))
    assert bench.do(Applied(0)) == []  # Its producers asked elsewhere, and find their original.
    assert bench.writer.is_idle


def test_a_new_registration_fails_what_is_open_and_counts_from_nothing() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(Stored(1))
    effects = bench.do(Registered(EPOCH + 1))
    assert effects == [Fail(each, Reason.NOT_REGISTERED) for each in (1, 2, 3)]
    assert bench.do(Applied(0), ProposalEnded(1, is_agreed=True)) == []
    assert of_kind(Store, bench.full(1)) == [Store(4, 0)]


def test_hearing_of_the_same_registration_again_changes_nothing() -> None:
    bench = Bench()
    bench.full(1)
    assert bench.do(Registered(EPOCH), Registered(None), Registered(EPOCH)) == []
    assert bench.do(Stored(1)) == [Propose(1, [(0, 1)])]


def test_what_was_gathered_before_the_first_registration_is_kept() -> None:
    bench = Bench(epoch=None)
    bench.full(1)
    assert bench.do(Registered(EPOCH)) == [Store(1, 0)]


# --- a snapshot ------------------------------------------------------------------------------------------------------


def test_over_what_a_snapshot_jumps_nobody_knows() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(Stored(1), Stored(2))
    effects = bench.do(Jumped(0))
    assert effects == [Fail(1, Reason.UNKNOWN), Propose(2, [(1, 2)])]
    assert bench.do(Applied(1)) == [Answer(2)]


def test_a_snapshot_that_jumps_over_nothing_has_the_proposal_made_again() -> None:
    bench = Bench()
    bench.full(1)
    bench.do(Stored(1))
    assert bench.do(Jumped(-1)) == [Propose(2, [(0, 1)])]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_what_is_held_is_bounded_whoever_waits_for_it() -> None:
    bench = Bench()
    assert of_kind(Refuse, bench.full(5)) == []
    assert bench.do(Arrived(1)) == [Refuse(Reason.STORE_AWAY)]
    bench.do(Stored(1), Applied(0))
    assert of_kind(Refuse, bench.do(Arrived(1))) == []


def test_one_batch_may_exceed_the_limit_if_nothing_is_held() -> None:
    bench = Bench()
    assert bench.do(Arrived(LIMITS.held_bytes_max * 3)) == [Take(1), Store(1, 0)]


def test_producers_are_to_wait_when_half_of_it_is_held() -> None:
    bench = Bench()
    bench.full(2)
    assert not bench.writer.is_crowded
    bench.full(1)
    assert bench.writer.is_crowded
    bench.do(Stored(1), Applied(0))
    assert not bench.writer.is_crowded


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_writer_that_stops_stores_what_it_has_at_once_and_takes_no_more() -> None:
    bench = Bench()
    bench.do(Arrived(1))
    assert bench.do(Stop()) == [Store(1, 0)]
    assert bench.do(Arrived(1)) == [Refuse(Reason.STOPPING)]
    assert bench.do(Stored(1), Applied(0)) == [Propose(1, [(0, 1)]), Answer(1)]
    assert bench.writer.is_idle


def test_when_it_is_over_everybody_is_told_and_nothing_more_is_begun() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(Stored(1))
    assert bench.do(Stop(is_over=True)) == [Fail(each, Reason.STOPPING) for each in (1, 2, 3)]
    late = [Stored(2), Applied(0), Registered(EPOCH + 1), Tick(), ProposalEnded(1, is_agreed=False)]
    assert bench.do(*late) == []
    assert bench.do(Arrived(1)) == [Refuse(Reason.STOPPING)]
    assert bench.writer.is_idle


# --- what people see -------------------------------------------------------------------------------------------------


def test_every_segment_is_shown_with_its_state_size_and_age() -> None:
    bench = Bench()
    bench.full(3)
    bench.do(StoreFailed(1), Stored(2), Arrived(7))
    bench.now_ms += 30
    views = bench.writer.describe(bench.now_ms)
    assert [(view.state.value, view.number, view.batches, view.size) for view in views] == [
        ("flushing", 0, 1, FULL),
        ("flushing", 1, 1, FULL),
        ("flushing", 2, 1, FULL),
        ("active", None, 1, 7),
    ]
    assert [(view.failures, view.is_stored) for view in views[:2]] == [(1, False), (0, True)]
    assert {view.age_ms for view in views} == {30}
