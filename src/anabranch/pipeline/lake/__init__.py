"""The lake: records of a topic as rows of a table, exactly once, in Iceberg, Delta or Parquet.

`sink.py` writes one batch: executors write Parquet files (`files.py`, after `parse.py` made rows of records), the
driver commits the list of files together with the batch's number and the offsets reached, in one commit of the table.
The three formats stand behind one small door (`table.py`). What does not fit goes to a topic of its own (`dlq.py`).
"""
