"""Spark itself: the session, the Java that runs it, its workers, its progress, and its failures in one sentence."""
