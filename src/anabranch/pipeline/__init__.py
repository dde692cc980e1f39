"""The pipeline: everything that moves or rewrites records in bulk, as PySpark jobs.

It is a Kafka client like any other, and a reader of segment files: it knows `record` and `wire`, the formats, and
nothing of the broker's rooms. pyspark, pyarrow and the table formats are imported where they are used, never here:
they are an extra (`pip install anabranch[spark]`), and a wrong option must not cost the start of a JVM.
"""
