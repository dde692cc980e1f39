"""Spark jobs: one file per job, and the tasks they are made of."""
