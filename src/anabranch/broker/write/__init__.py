"""The way of a produced batch: checked, queued, written by the single writer, synced, answered."""
