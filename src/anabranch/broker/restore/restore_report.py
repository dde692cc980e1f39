"""What bringing a cluster back has done, or would do: for people, and as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

DAMAGED_SHOWN = 20


@dataclass
class AppendedPartition:
    """Records of one partition that were stored after the snapshot."""

    topic: str
    partition: int
    gap_start: int
    """From here to `start` offsets may have been given out, in an order that nobody knows: they name nothing now."""
    start: int
    end: int
    """The same records again. Some may be there twice, under an offset that was theirs before."""
    repeats: int
    refused: int


@dataclass
class CopiedPartition:
    """Records of one partition that the snapshot does not know, and whose objects carry their offsets."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass
class MovedOffset:
    group: str
    topic: str
    partition: int
    before: int
    after: int


@dataclass
class RestoreReport:
    store: str
    snapshot: str | None
    """None: the cluster ended before its first one."""
    snapshot_time_ms: int
    incarnation: str
    successor: str
    broker_id: int
    now_ms: int
    passed_over: list[str] = field(default_factory=list)
    """Snapshots that cannot be read."""
    topics: list[str] = field(default_factory=list)
    """Those whose records are in the bucket."""
    appended: list[AppendedPartition] = field(default_factory=list)
    copied: list[CopiedPartition] = field(default_factory=list)
    """What carries its own offsets, and has kept them."""
    named_anew: list[str] = field(default_factory=list)
    """Topics that no snapshot knows, under the names they have now."""
    emptied: list[str] = field(default_factory=list)
    """Topics whose records were never in the bucket, with their mode."""
    partly: list[str] = field(default_factory=list)
    """Topics whose older records alone were in the bucket: they had left the object store, or were going there."""
    groups: int = 0
    offsets: int = 0
    offsets_time_ms: int | None = None
    """Of the oldest snapshot of groups that counts."""
    offsets_moved: list[MovedOffset] = field(default_factory=list)
    offsets_dropped: int = 0
    """Of topics that are not there any more."""
    objects_checked: int = 0
    """Those that the snapshot names and that are there: each is large enough, or is damaged."""
    bytes_checked: int = 0
    objects_verified: int = 0
    """Those of them that were read."""
    bytes_verified: int = 0
    damaged: list[str] = field(default_factory=list)
    """Those of them whose bytes are not what was written, and why. What of their records is lost, `losses` has."""
    losses: list[str] = field(default_factory=list)
    stored_meanwhile: int = 0
    """Objects that came while this went on: somebody still writes to the old cluster."""

    @property
    def records_appended(self) -> int:
        return sum(each.end - each.start for each in self.appended)

    @property
    def objects_unverified(self) -> int:
        return self.objects_checked - self.objects_verified

    @property
    def bytes_unverified(self) -> int:
        return self.bytes_checked - self.bytes_verified

    def json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "records_appended": self.records_appended,
            "objects_unverified": self.objects_unverified,
            "bytes_unverified": self.bytes_unverified,
        }

    def lines(self) -> list[str]:
        return [
            *self._snapshot_lines(),
            *self.passed_over,
            *self._topic_lines(),
            *(
                f"Topic {each} is empty: its records were on the brokers' disks alone."
                for each in self.emptied
            ),
            *(
                f"Topic {each} is in mode object, with what it had in the store: what came after was on the brokers' "
                "disks alone."
                for each in self.partly
            ),
            *self._group_lines(),
            *self._checked_lines(),
            *(f"LOST: {each}" for each in self.losses),
            *self._meanwhile_lines(),
        ]

    def _snapshot_lines(self) -> list[str]:
        if self.snapshot is None:
            return []
        return [f"Snapshot {self.snapshot} of {self.store}, {age(self.now_ms - self.snapshot_time_ms)} old."]

    def _topic_lines(self) -> list[str]:
        named = set(self.named_anew)
        lines = []
        for topic in self.topics:
            appended = [each for each in self.appended if each.topic == topic]
            lines.append(f"Topic {topic}: {_what_was_appended(appended)}")
            if topic in named:
                lines.append(
                    f"Topic {topic} has no other name: it was made after the snapshot, or deleted before it."
                )
            lines += (
                f"  partition {each.partition}: offsets {each.start} to {each.end - 1} are those that its objects say."
                for each in self.copied
                if each.topic == topic
            )
            lines += (_where(each) for each in appended if each.end > each.start)
        return lines

    def _group_lines(self) -> list[str]:
        if self.offsets_time_ms is None:
            return ["No committed offsets of groups are in the bucket."]
        lines = [
            f"{self.offsets} committed offsets of {self.groups} groups, "
            f"{age(self.now_ms - self.offsets_time_ms)} old: what was consumed since then is consumed again."
        ]
        if self.offsets_dropped:
            lines.append(
                f"{self.offsets_dropped} committed offsets are of topics that are not there any more."
            )
        lines += (
            f"Group {each.group}, {each.topic}-{each.partition}: offset {each.before} lies beyond what is there, "
            f"and becomes {each.after}."
            for each in self.offsets_moved
        )
        return lines

    def _checked_lines(self) -> list[str]:
        """All that was checked is said, and all that was not."""
        lines = [f"Damaged: {each}" for each in self.damaged[:DAMAGED_SHOWN]]
        if len(self.damaged) > DAMAGED_SHOWN:
            lines.append(f"Damaged: {len(self.damaged) - DAMAGED_SHOWN} more, which --format json names.")
        if self.objects_verified:
            lines.append(
                f"Verified: {self.objects_verified} objects that the snapshot names, {self.bytes_verified} bytes, were "
                "read, and their checksums compared."
            )
        if self.objects_unverified:
            lines.append(
                f"Not verified: {self.objects_unverified} objects, {self.bytes_unverified} bytes, are in the "
                "store's listing with all of their size, and were not read: run this with --verify to read them."
            )
        return lines

    def _meanwhile_lines(self) -> list[str]:
        if not self.stored_meanwhile:
            return []
        return [
            f"{self.stored_meanwhile} objects were stored meanwhile: the old cluster still runs. Stop it: what it "
            "acknowledges from now on is not in the new one."
        ]


def _what_was_appended(appended: list[AppendedPartition]) -> str:
    records = sum(each.end - each.start for each in appended)
    if not appended:
        return "as in the snapshot."
    text = f"{records} records newer than the snapshot are appended again; some of them may be duplicates."
    repeats = sum(each.repeats for each in appended)
    refused = sum(each.refused for each in appended)
    if repeats:
        text += f" {repeats} repeats of idempotent producers are left out."
    if refused:
        text += f" {refused} that their producers were never acknowledged are left out."
    return text


def _where(each: AppendedPartition) -> str:
    return (
        f"  partition {each.partition}: offsets {each.start} to {each.end - 1}; "
        f"{each.gap_start} to {each.start - 1} stay empty."
    )


def age(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
