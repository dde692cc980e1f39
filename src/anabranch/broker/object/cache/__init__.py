"""Bytes of stored objects near the broker: in blocks, in memory first and then on the local disk."""
