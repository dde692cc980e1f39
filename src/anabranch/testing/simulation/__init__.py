"""Whole nodes and clusters in one thread: one seed, one run; and the workloads and witnesses that try them."""
