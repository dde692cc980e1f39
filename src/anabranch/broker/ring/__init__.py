"""Mode ring: partitions that up to three brokers keep.

Carries out what `modes.ring` decides: tells peers, writes, syncs, publishes, repairs.
"""
