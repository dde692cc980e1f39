"""Raft for the metadata quorum: told what happened, it says what to write and whom to tell. It does neither."""
