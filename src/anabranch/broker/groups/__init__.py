"""Classic consumer groups: who is a member, who may commit, and which offsets are committed.

Decisions are pure: `classic_group` and what it builds on know no loop, clock, disk or chance; they take
events with the time in them and return effects. `coordinator` alone is asyncio-facing: it carries the effects
out, with an `append` to the `__consumer_offsets` log that is handed in. The log's record formats are Kafka's
(`records`). This room knows nothing of requests as bytes, partitions or sockets.
"""
