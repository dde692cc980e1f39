"""The ring as a mode: who may write, and what a fenced replica still does."""

from anabranch.modes.generations import Generations, Row
from anabranch.modes.mode import Appended, FlushFinished, Publish
from anabranch.modes.ring.effects import Kept, Sync, Take, Tell
from anabranch.modes.ring.events import Heard, NotSent, NotTaken, PeerUp, Refused, Tick
from anabranch.modes.ring.messages import Beat, Enter, Equal, Promise, Push, Returned
from anabranch.modes.ring.mode import RingMode

B1, B2, B3 = 1, 2, 3


def mode(me: int, *, fits: int = 100) -> RingMode:
    return RingMode(
        me, (B1, B2, B3), Kept(), 0, 0, fits=lambda start, end: min(end, start + fits), sync_first=True
    )


def leading() -> RingMode:
    one = mode(B1)
    one.step(Tick(), 2000)
    one.step(Heard(Promise(B2, 1, True, 1, 0)), 2001)
    return one


def writing() -> RingMode:
    one = leading()
    one.step(Heard(Equal(B2, 1, 0, has_entered=True, is_trusted=True)), 2002)
    return one


def test_a_leader_may_write_once_a_follower_has_entered_its_generation() -> None:
    one = leading()
    assert (one.leads, one.leader(), one.writer()) == (True, B1, None)
    one.step(Heard(Equal(B2, 1, 0, has_entered=True, is_trusted=True)), 2002)
    assert (one.writer(), one.is_settled, one.generation) == (B1, True, 1)


def test_nobody_may_write_while_something_is_being_remembered() -> None:
    one = writing()
    one.is_remembering = True
    assert (one.writer(), one.leads) == (None, False)


def test_a_follower_names_its_leader() -> None:
    one = mode(B3)
    assert (one.writer(), one.reader(0)) == (None, B1)
    one.step(Heard(Enter(B2, 2, Generations([Row(2, 0)]), {})), 1)
    assert (one.writer(), one.reader(0), one.leads, one.generation) == (B2, B2, False, 2)


def test_what_is_synced_here_and_there_is_published() -> None:
    one = writing()
    effects = one.step(Appended(3), 2003)
    assert [type(effect) for effect in effects] == [Tell, Sync]
    assert one.step(FlushFinished(3), 2004) == []
    assert Publish(3) in one.step(Heard(Equal(B2, 1, 3, has_entered=True, is_trusted=True)), 2005)
    assert one.safe_offset() == 3


def test_a_fenced_replica_says_nothing_but_that_others_must_lead() -> None:
    one = writing()
    one.fence()
    assert one.step(Tick(), 9000) == [Tell(B2, Returned(B1, 0, "")), Tell(B3, Returned(B1, 0, ""))]
    assert not one.is_due(9100)
    assert one.step(Heard(Beat(B1, 1, 0)), 9000) == []
    assert (one.writer(), one.leads) == (None, False)


def test_a_leader_whose_disk_refuses_stops_and_says_so() -> None:
    one = writing()
    for event, at_ms in ((Refused(), 2100), (Tick(), 2600)):
        said = [effect.message for effect in one.step(event, at_ms) if isinstance(effect, Tell)]
        assert said.count(Returned(B1, 1, "")) == 2
    assert not one.leads
    two = mode(B2)
    two.step(Tick(), 2200)
    two.step(Heard(Returned(B1, 1, "")), 2250)
    assert any(isinstance(effect, Tell) for effect in two.step(Tick(), 2300)), "it proposes itself"


def test_what_had_no_room_is_pushed_with_the_next_tick() -> None:
    one = writing()
    one.step(Tick(), 2500)
    one.step(Appended(3), 2501)
    one.step(NotSent(B2, 0), 2501)
    assert one.is_due(2502)
    assert [effect.message.start for effect in one.step(Tick(), 2502) if isinstance(effect, Tell)] == [0]
    assert not one.is_due(2503)


def test_a_push_that_was_not_taken_leaves_the_log_where_it_was() -> None:
    one = mode(B3)
    one.step(Heard(Enter(B1, 1, Generations([Row(1, 0)]), {})), 1)
    effects = one.step(Heard(Push(B1, 1, 0, 5, 1, safe=5)), 2)
    assert isinstance(effects[0], Take)
    one.step(NotTaken(0, 0, is_refused=False), 3)
    assert (one.replica.end, one.safe_offset()) == (0, 0)


def test_a_new_link_is_greeted() -> None:
    assert [effect.to for effect in writing().step(PeerUp(B3), 3000)] == [B3]


def test_it_describes_itself() -> None:
    told = writing().describe()
    assert (told["mode"], told["leader"], told["has_failover"], told["lag"]) == (
        "ring",
        B1,
        True,
        {B2: 0, B3: 0},
    )


def test_what_is_kept_comes_back_from_a_state_file() -> None:
    kept = Kept(7, Generations([Row(1, 0), Row(5, 30)]), "return")
    assert Kept.from_state(kept.as_state()) == kept
