"""Writes: records of many small HTTP and WebSocket writers become few compressed batches, one per partition at a
time."""
