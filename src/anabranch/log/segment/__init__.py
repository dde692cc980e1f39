"""One segment: its `.log`, indexes and seal, how it is written, read, checked and rolled.

Knows record batches and the disk; knows nothing of the other segments of its log.
"""
