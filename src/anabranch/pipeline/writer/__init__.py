"""Rows to topics: the writer behind `df.write.format("anabranch")` and `writeStream`."""
