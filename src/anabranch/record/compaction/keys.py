"""Offset and key of each record of a batch, and whether it is a tombstone: all that compaction decides by.

Most batches of a log that is compacted go whole or stay whole, and for those nobody has to look at values and headers.
The compiled form leaves the walk to the decoder of columns; both forms refuse the same batches.
"""

from anabranch.record.backend import COMPILED
from anabranch.record.compaction.keys_pure import KeyedRecord, keyed_records_pure

if COMPILED:
    from anabranch.record.compaction.keys_compiled import keyed_records_compiled as keyed_records
else:
    keyed_records = keyed_records_pure

__all__ = ["KeyedRecord", "keyed_records"]
