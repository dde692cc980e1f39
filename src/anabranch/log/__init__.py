"""The storage engine: a partition is a `Log` of segments in one folder, in the file formats of Kafka's log
folder.

The only room that touches the disk, and always through the `Files` protocol (`files.py`). It knows record
batches as bytes with a header (`record`), offsets, positions and time as numbers handed in; it knows no
topic, no socket, no loop. One thread (the writer) changes a log; worker threads sync, verify and clean on
values that were handed to them.
"""
