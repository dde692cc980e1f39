"""What a broker does besides answering requests: retention, compaction, scrubbing, checkpoints."""
