"""The driver's part of reading: which partitions there are, where to begin and end, and the tasks in between.

Every answer is compared with what was read before. A topic that vanished or was made again under its name, offsets
that retention took, and a log that ends before it did are for the loss policy to judge, here already, before a task
runs into it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from anabranch.errors import OptionError, PipelineError, TryAgainError, UnknownTopicOrPartitionError
from anabranch.pipeline.client.client import EARLIEST, LATEST, Client, Topic
from anabranch.pipeline.source.branches import BRANCH_MODE, MODE, branch_of, lane_folder, lines, may_have_gaps
from anabranch.pipeline.source.chunks import headers_of, offset_after
from anabranch.pipeline.source.coordinates import Coordinates, coordinates
from anabranch.pipeline.source.loss import LossPolicy
from anabranch.pipeline.source.object_plan import object_stretches
from anabranch.pipeline.source.offsets import (
    FROM_EARLIEST,
    FROM_LATEST,
    Bound,
    Bounds,
    Offsets,
    Progress,
    resolve,
)
from anabranch.pipeline.source.options import Direct, ReaderOptions
from anabranch.pipeline.source.plan import (
    Lines,
    Range,
    SegmentFile,
    Stretch,
    admitted,
    count,
    split,
    stretches,
)
from anabranch.pipeline.source.reading import chunks_of
from anabranch.pipeline.source.segment_files import sealed_files, why_unreachable
from anabranch.values import TopicPartition

COMMIT_SECONDS_MAX = 5.0
OBJECT_MODE = "object"
IN_MEMORY = "memory:"


class View(NamedTuple):
    """The subscribed partitions as they are now."""

    cluster_id: str | None
    topic_ids: dict[str, UUID]
    bounds: dict[TopicPartition, Bounds]
    modes: dict[str, str]
    """Those that a topic says."""
    lines: Lines
    """Of partitions that are in mode branch, or were: which offsets have records."""

    @property
    def ends(self) -> Progress:
        return Progress({place: ends.end for place, ends in self.bounds.items()}, self.topic_ids)


class Planner:
    """For one reader. It keeps a connection, so it lives on the driver alone."""

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._loss = LossPolicy(options.fail_on_data_loss)
        self._client = Client(options.bootstrap, patience_seconds=options.broker_seconds_max)

    def close(self) -> None:
        self._client.close()

    # --- looking --------------------------------------------------------------------------------------------------

    def look(self, *, must_exist: bool) -> View:
        """What is there now. `must_exist`: a topic or partition that was named and is not there is an error."""
        return self._client.patiently(lambda: self._look(must_exist))

    def _look(self, must_exist: bool) -> View:
        subscription = self._options.subscription
        cluster = self._client.cluster(subscription.wanted_names)
        topics = {
            name: topic
            for name, topic in cluster.topics.items()
            if subscription.fits(name, is_internal=topic.is_internal)
        }
        places = [
            place for topic in topics.values() for place in topic.partitions if subscription.wants(place)
        ]
        if must_exist:
            self._check_exist(topics, places)
        try:
            firsts = self._client.offsets_at(dict.fromkeys(places, EARLIEST))
            ends = self._client.offsets_at(dict.fromkeys(places, LATEST))
            modes = self._client.topic_configs(sorted(topics), MODE)
            found = lines(
                self._client, (each for each in places if _has_line(modes.get(each.topic), ends[each]))
            )
        except UnknownTopicOrPartitionError as error:
            raise TryAgainError(f"a topic went away while we looked: {error}") from error
        bounds = {place: Bounds(firsts[place], ends[place]) for place in places}
        ids = {name: topic.id for name, topic in topics.items()}
        return View(cluster.id, ids, bounds, modes, found)

    def _check_exist(self, topics: Mapping[str, Topic], places: Iterable[TopicPartition]) -> None:
        subscription, where = self._options.subscription, self._options.bootstrap
        missing = [name for name in subscription.wanted_names or () if name not in topics]
        if missing:
            raise UnknownTopicOrPartitionError(
                f"There is no topic {', '.join(missing)} at {where}: create it, or look at the name."
            )
        absent = sorted(set(subscription.assigned) - set(places))
        if absent:
            raise UnknownTopicOrPartitionError(f"There is no partition {absent[0]} at {where}.")

    # --- batches --------------------------------------------------------------------------------------------------

    def batch_ranges(self) -> list[Range]:
        view = self.look(must_exist=True)
        start = self._resolved(self._options.start or FROM_EARLIEST, view, is_start=True)
        end = self._resolved(self._options.end, view, is_start=False)
        self._check_order(start, end)
        return self._tasks(view, self._present(start, view), end)

    def _resolved(self, bound: Bound, view: View, *, is_start: bool) -> Offsets:
        late = self._options.late_start if is_start else FROM_LATEST.point
        return resolve(bound, view.bounds, self._client.offsets_at, late=late)

    def _check_order(self, start: Offsets, end: Offsets) -> None:
        """A user's own numbers that contradict each other are a mistake, not an empty range."""
        given = self._options.start
        if given is None or not given.is_exact or not self._options.end.is_exact:
            return
        for place in start:
            if start[place] > end[place]:
                raise OptionError(
                    f"{self._options.end.option}: {place} would end at {end[place]}, before its start {start[place]}."
                )

    # --- streams --------------------------------------------------------------------------------------------------

    def initial(self) -> Progress:
        view = self.look(must_exist=True)
        start = self._resolved(self._options.start or FROM_LATEST, view, is_start=True)
        return Progress(self._present(start, view), view.topic_ids)

    def latest(self, start: Progress, target: Progress | None, records_max: int | None) -> Progress:
        """How far the next trigger may read, given where the last one ended; `target`: never beyond that."""
        view = self.look(must_exist=False)
        begin = self._present(self._continued(start, view), view)
        end = {place: max(begin[place], _capped(place, view, target)) for place in begin}
        if target is not None:
            end = {
                place: at for place, at in end.items() if place in target.offsets or place in start.offsets
            }
        if records_max is not None:
            end = self._limited({place: begin[place] for place in end}, end, view, records_max)
        return Progress(end, {place.topic: view.topic_ids[place.topic] for place in end})

    def stream_ranges(self, start: Progress, end: Progress) -> list[Range]:
        view = self.look(must_exist=False)
        wanted = {}
        for place, at in end.offsets.items():
            if not self._is_same(place, end, view):
                continue
            wanted[place] = at
        begin = {place: _begin_of(place, start, end.topic_ids) for place in wanted}
        return self._tasks(view, self._present(begin, view), wanted)

    def _continued(self, start: Progress, view: View) -> Offsets:
        """Where to go on: where we stood, and at the beginning of what is new."""
        for place in start.offsets:
            self._is_same(place, start, view)
        return {place: _begin_of(place, start, view.topic_ids) for place in view.bounds}

    def _is_same(self, place: TopicPartition, progress: Progress, view: View) -> bool:
        """Whether a partition is still the one that was read before; a loss if it is not."""
        known, now = progress.topic_ids.get(place.topic), view.topic_ids.get(place.topic)
        if place not in view.bounds:
            self._loss.report(f"{place} does not exist any more, or is not subscribed to any more")
            return False
        if known is not None and known != now:
            self._loss.report(f"Topic {place.topic} was deleted and made again under the same name")
            return False
        return True

    def _limited(self, start: Offsets, end: Offsets, view: View, records_max: int) -> Offsets:
        """At most so many records. Where compaction leaves gaps they are counted, elsewhere offsets tell."""
        limited = admitted(start, end, records_max, view.lines)
        thinned = self._client.compacted_topics(sorted({place.topic for place in end}))
        for place, upto in limited.items():
            if place.topic in thinned and start[place] < upto < end[place]:
                line = view.lines.get(place)
                whole = Range(place, view.topic_ids[place.topic], start[place], end[place], line=line)
                (task,) = self._with_ways(view, [whole])
                headers = headers_of(chunks_of(self._options, task))
                records = count(line, start[place], upto)
                limited[place] = offset_after(headers, start[place], end[place], records)
        return limited

    # --- tasks ----------------------------------------------------------------------------------------------------

    def _tasks(self, view: View, begin: Offsets, end: Offsets) -> list[Range]:
        ranges = []
        for place in sorted(end):
            upto = end[place]
            if upto > view.bounds[place].end:
                self._loss.report(_too_far(place, view, upto))
                upto = view.bounds[place].end
            topic_id, line = view.topic_ids[place.topic], view.lines.get(place)
            ranges.append(Range(place, topic_id, begin[place], upto, line=line))
        pieces = split(ranges, self._options.partitions_min, self._options.records_per_partition_max)
        return self._with_ways(view, pieces)

    def _present(self, start: Offsets, view: View) -> Offsets:
        """The same offsets, moved into what is there; moving them is a loss."""
        present = {}
        for place, at in start.items():
            first, end = view.bounds[place]
            if at < first:
                self._loss.report(f"{place} begins at offset {first} by now, and {at} was to be read")
                at = first
            elif at > end and place not in view.lines:  # Another side of a split was ahead: it comes back.
                self._loss.report(f"{place} ends at offset {end}, and {at} was to be read: it was cut back")
                at = end
            present[place] = at
        return present

    # --- files and objects ----------------------------------------------------------------------------------------

    def _with_ways(self, view: View, ranges: list[Range]) -> list[Range]:
        """The same ranges, with all that can be read without the broker."""
        if self._options.direct is Direct.NEVER or not ranges:
            return ranges
        stored = {task.place for task in ranges if view.modes.get(task.place.topic) == OBJECT_MODE}
        files = self._sealed(view, {task.place for task in ranges} - stored)
        objects = {place: self._coordinates(place, ranges) for place in sorted(stored)}
        return [
            task._replace(stretches=_stretches(task, files.get(task.place, ()), objects.get(task.place)))
            for task in ranges
        ]

    def _coordinates(self, place: TopicPartition, ranges: Sequence[Range]) -> Coordinates | None:
        """Of all that is to be read of a partition; None: only the broker can tell what became of it."""
        mine = [task for task in ranges if task.place == place]
        start, end = min(task.start for task in mine), max(task.end for task in mine)
        try:
            found = coordinates(self._client, place, mine[0].topic_id, start, end)
        except UnknownTopicOrPartitionError:
            return None
        if not found.store_url.startswith(IN_MEMORY):
            return found
        if self._options.direct is Direct.REQUIRE:
            raise PipelineError(
                f"direct=require: the objects of {place} are in the broker's memory, where no task finds them. With "
                "direct=auto they come by the protocol."
            )
        return None

    def _sealed(self, view: View, places: set[TopicPartition]) -> dict[TopicPartition, list[SegmentFile]]:
        if not places:
            return {}
        names = sorted({place.topic for place in places})
        folders = self._client.log_folders(names)
        found: dict[TopicPartition, list[SegmentFile]] = {}
        for place in places:
            reason = self._unreachable(place, folders, view)
            if reason is None:
                found[place] = _files_of(folders[place], place, view)
            elif self._options.direct is Direct.REQUIRE:
                raise PipelineError(
                    f"direct=require: the files of {place} are out of reach: {reason}. With direct=auto they come by "
                    "the protocol."
                )
        # A topic made again meanwhile has a folder of the same name, with other records in it.
        now = self._client.cluster(names).topics
        return {
            place: files
            for place, files in found.items()
            if place.topic in now and now[place.topic].id == view.topic_ids[place.topic]
        }

    def _unreachable(
        self, place: TopicPartition, folders: Mapping[TopicPartition, str], view: View
    ) -> str | None:
        if place not in folders:
            return "the broker names no folder"
        return why_unreachable(folders[place], place.folder, view.cluster_id)

    # --- progress -------------------------------------------------------------------------------------------------

    def commit(self, progress: Progress) -> None:
        """With a connection and little patience of its own: reading does not wait for this."""
        if not progress.offsets:
            return
        with closing(Client(self._options.bootstrap, patience_seconds=COMMIT_SECONDS_MAX)) as client:
            client.commit_offsets(self._options.group, progress.offsets)


def _has_line(mode: str | None, end: int) -> bool:
    """Whether the broker has to be asked which offsets have records."""
    return mode == BRANCH_MODE or may_have_gaps(end)


def _files_of(data_folder: str, place: TopicPartition, view: View) -> list[SegmentFile]:
    """The sealed files of a partition, or of each branch that its line goes through."""
    line = view.lines.get(place)
    if line is None or view.modes.get(place.topic) != BRANCH_MODE:
        return sealed_files(data_folder, place.folder)
    branches = dict.fromkeys(span.branch for span in line)
    folders = [f"{place.folder}/{lane_folder(branch)}" for branch in branches]
    return [file for folder in folders for file in sealed_files(data_folder, folder)]


def _branch_stretches(task: Range, files: Sequence[SegmentFile]) -> tuple[Stretch, ...]:
    """What lies beyond a line's part of a branch is in that branch's files too, and not in the line."""
    found: list[Stretch] = []
    for branch, spans in groupby(task.line or (), key=lambda span: span.branch):
        first, *rest = spans
        last = rest[-1] if rest else first  # Between two spans of one branch there is nothing to read.
        start, end = max(task.start, first.start), min(task.end, last.end)
        if start < end:
            found += stretches(start, end, [file for file in files if branch_of(file.base_offset) == branch])
    return tuple(found)


def _too_far(place: TopicPartition, view: View, upto: int) -> str:
    end = view.bounds[place].end
    if view.modes.get(place.topic) == BRANCH_MODE:
        return (
            f"{place} ends at offset {end} here, and {upto} was to be reached: another side of a split has the rest, "
            "until both are joined"
        )
    return (
        f"{place} ends at offset {end}, and {upto} was to be reached: it was cut back, or never had so many"
    )


def _stretches(task: Range, files: Sequence[SegmentFile], objects: Coordinates | None) -> tuple[Stretch, ...]:
    if objects is not None:
        return object_stretches(
            task.start, task.end, objects.store_url, objects.start, objects.end, objects.rows
        )
    if task.line is not None:
        return _branch_stretches(task, files)
    return stretches(task.start, task.end, files)


def _begin_of(place: TopicPartition, start: Progress, ids: Mapping[str, UUID]) -> int:
    """Where a partition begins: where it stood, or at 0 if it is a new one or of a topic that was made again."""
    known, now = start.topic_ids.get(place.topic), ids.get(place.topic)
    is_known = place in start.offsets and (known is None or known == now)
    return start.offsets[place] if is_known else 0


def _capped(place: TopicPartition, view: View, target: Progress | None) -> int:
    end = view.bounds[place].end
    if target is None or place not in target.offsets:
        return end if target is None else 0
    return min(end, target.offsets[place])
