"""`make bench-pipeline`: topics read through our data source and through Spark's own Kafka connector, on one node.

queries.py runs inside the connector's environment, in one Spark session that has both; compaction.py compares the
compaction job with plain processes; __main__.py fills the topics, runs both and the decoder, and report.py tells.
"""
