"""The agreed table of brokers, topics, placements and configs, and the log entries that change it."""
