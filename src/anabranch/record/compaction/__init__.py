"""Compaction by key over bytes: which records of these batches survive. Pure; used by the log cleaner and by Spark
jobs."""
