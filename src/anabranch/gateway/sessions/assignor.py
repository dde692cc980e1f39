"""Which member of a group gets which partitions, as every Kafka client's "range" assignor decides it. Pure.

Partitions of a topic go to its subscribers in the order of their ids, in ranges of equal length but for one. A member
of the gateway and a Java consumer of the same group therefore come to the same answer, whichever of them leads.
"""

from collections.abc import Collection, Mapping

RANGE = "range"


def range_assignment(
    subscriptions: Mapping[str, Collection[str]], partition_counts: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Topic to partitions for each member; a topic that does not exist has no partitions to give."""
    assigned: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
    for topic, count in sorted(partition_counts.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        for index, member in enumerate(members):
            each, more = divmod(count, len(members))
            start = each * index + min(index, more)
            length = each + (1 if index < more else 0)
            if length:
                assigned[member][topic] = list(range(start, start + length))
    return assigned
