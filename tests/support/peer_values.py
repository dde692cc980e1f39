"""Strategies for everything that brokers say to each other."""

from hypothesis import strategies as st

from anabranch.broker.peers import messages as peer
from anabranch.broker.peers.codec import Refused
from anabranch.cluster.raft import messages as quorum
from anabranch.modes.generations import Generations, Row
from anabranch.modes.ring import messages as ring

SENDER = 2
numbers = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
flags = st.booleans()
blobs = st.binary(max_size=200)
ids = st.uuids()
moves = st.integers(-1, 2**60)
members = st.builds(quorum.Member, small, texts)


@st.composite
def member_sets(draw: st.DrawFn) -> quorum.Members:
    everyone = draw(st.lists(members, unique=True, max_size=6))
    cut = draw(st.integers(0, len(everyone)))
    return quorum.Members(frozenset(everyone[:cut]), frozenset(everyone[cut:]))


@st.composite
def tables(draw: st.DrawFn) -> Generations:
    generations = sorted(draw(st.sets(small, max_size=5)))
    starts = sorted(draw(st.lists(numbers, min_size=len(generations), max_size=len(generations))))
    return Generations([Row(*row) for row in zip(generations, starts, strict=True)])


@st.composite
def pushes(draw: st.DrawFn) -> ring.Push:
    start, end = sorted([draw(numbers), draw(numbers)])
    written_in = draw(st.integers(-1, 2**31 - 2))
    return ring.Push(SENDER, draw(small), start, end, written_in, draw(numbers), draw(blobs))


plain_entries = st.builds(
    quorum.Entry,
    numbers,
    st.sampled_from([quorum.EntryKind.CHANGE, quorum.EntryKind.REIGN]),
    blobs,
    st.none(),
)
member_entries = st.builds(
    quorum.Entry, numbers, st.just(quorum.EntryKind.MEMBERS), blobs, members=member_sets()
)
entries = st.lists(plain_entries | member_entries, max_size=4)
trees = st.dictionaries(texts, st.lists(small | texts | flags, max_size=3), max_size=3)
snapshots = st.builds(quorum.Snapshot, numbers, numbers, member_sets(), st.none() | blobs | trees)
me = st.builds(quorum.Member, st.just(SENDER), texts)
from_to = {"sender": me, "receiver": members, "term": numbers}

sender = st.just(SENDER)


def letters(message: st.SearchStrategy[ring.Message]) -> st.SearchStrategy[peer.RingLetter]:
    return st.builds(peer.RingLetter, ids, small, small, message)


rows = st.builds(peer.LeaderRow, ids, small, small, small, st.lists(small, max_size=3).map(tuple))

STRATEGIES = {
    quorum.AskVote: st.builds(
        quorum.AskVote, **from_to, log_end=numbers, log_term=numbers, is_trial=flags, is_transfer=flags
    ),
    quorum.GiveVote: st.builds(quorum.GiveVote, **from_to, is_trial=flags, is_given=flags),
    quorum.AppendEntries: st.builds(
        quorum.AppendEntries,
        **from_to,
        start=numbers,
        term_before=numbers,
        entries=entries,
        commit_end=numbers,
    ),
    quorum.AppendAnswer: st.builds(
        quorum.AppendAnswer, **from_to, is_taken=flags, end=numbers, start=numbers
    ),
    quorum.Beat: st.builds(quorum.Beat, **from_to, commit_end=numbers, read=numbers),
    quorum.BeatAnswer: st.builds(quorum.BeatAnswer, **from_to, read=numbers),
    quorum.SendSnapshot: st.builds(quorum.SendSnapshot, **from_to, snapshot=snapshots),
    quorum.TakeOver: st.builds(quorum.TakeOver, **from_to),
    ring.Push: letters(pushes()),
    ring.Propose: letters(st.builds(ring.Propose, sender, small)),
    ring.Promise: letters(st.builds(ring.Promise, sender, small, flags, small, numbers, tables())),
    ring.Enter: letters(
        st.builds(ring.Enter, sender, small, tables(), st.dictionaries(small, texts, max_size=3))
    ),
    ring.Pull: letters(st.builds(ring.Pull, sender, small, numbers)),
    ring.Equal: letters(st.builds(ring.Equal, sender, small, numbers, flags, flags, moves)),
    ring.Beat: letters(st.builds(ring.Beat, sender, small, numbers, numbers)),
    ring.Missing: letters(st.builds(ring.Missing, sender, small)),
    ring.Seal: letters(st.builds(ring.Seal, sender, small)),
    ring.Sealed: letters(st.builds(ring.Sealed, sender, small)),
    ring.Outdated: letters(st.builds(ring.Outdated, sender, small)),
    ring.Returned: letters(st.builds(ring.Returned, sender, small, texts)),
    peer.Ping: st.builds(peer.Ping, numbers),
    peer.Leads: st.builds(peer.Leads, st.lists(rows, max_size=3), flags, numbers),
    peer.AskLeads: st.just(peer.AskLeads()),
    peer.ForwardRequest: st.builds(peer.ForwardRequest, small, small, st.none() | texts, texts, blobs),
    peer.ForwardAnswer: st.builds(peer.ForwardAnswer, blobs),
    peer.RegisterBroker: st.builds(
        peer.RegisterBroker, small, texts, texts, small, texts, small, st.none() | texts
    ),
    peer.Registered: st.builds(peer.Registered, numbers),
    peer.BrokerBeat: st.builds(peer.BrokerBeat, small, numbers, numbers, flags),
    peer.BeatAnswer: st.builds(peer.BeatAnswer, flags, flags),
    peer.ReadRecords: st.builds(peer.ReadRecords, ids, small, small, numbers, numbers, numbers),
    peer.Records: st.builds(peer.Records, blobs),
    peer.ReadIndex: st.builds(peer.ReadIndex),
    peer.ReadIndexAnswer: st.builds(peer.ReadIndexAnswer, numbers),
    peer.ProducerIdBlock: st.builds(peer.ProducerIdBlock),
    peer.ProducerIds: st.builds(peer.ProducerIds, numbers, small),
    peer.BeginView: st.builds(
        peer.BeginView,
        ids,
        small,
        small,
        numbers,
        small,
        st.lists(small, max_size=3).map(tuple),
        moves,
        moves,
    ),
    peer.ViewBegun: st.builds(peer.ViewBegun, small),
    peer.NameDisk: st.builds(peer.NameDisk, ids, small, small, numbers),
    peer.DiskNamed: st.just(peer.DiskNamed()),
    peer.LookAtReplica: st.builds(peer.LookAtReplica, ids, small),
    peer.ReplicaSeen: st.builds(
        peer.ReplicaSeen, texts, small, small, tables(), numbers, numbers, numbers, flags, flags
    ),
    peer.ProposeEntry: st.builds(peer.ProposeEntry, blobs),
    peer.Proposed: st.builds(peer.Proposed, numbers),
    peer.BranchNews: st.just(peer.BranchNews()),
    peer.PollBranches: st.builds(peer.PollBranches, texts, numbers, numbers),
    peer.BranchRows: st.builds(peer.BranchRows, texts, numbers, numbers, flags, flags, blobs),
    peer.SealBranch: st.builds(peer.SealBranch, ids, small, small),
    peer.CloseBranch: st.builds(peer.CloseBranch, ids, small, moves),
    peer.HoldLine: st.builds(peer.HoldLine, ids, small, moves, moves, numbers, numbers, numbers),
    peer.LineHeld: st.just(peer.LineHeld()),
    peer.BranchSealed: st.builds(peer.BranchSealed, moves, numbers, blobs),
    peer.ReadLane: st.builds(peer.ReadLane, ids, small, numbers, numbers, numbers, numbers, small, flags),
    peer.LaneRecords: st.builds(peer.LaneRecords, numbers, numbers, numbers, flags, blobs),
    peer.FreeSpace: st.just(peer.FreeSpace()),
    peer.Space: st.builds(peer.Space, numbers),
    Refused: st.builds(Refused, texts, texts),
}
anything = st.one_of(*STRATEGIES.values())
