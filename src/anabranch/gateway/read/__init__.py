"""Reads: batches of a fetch become records, then JSON, once for all who follow the same place."""
