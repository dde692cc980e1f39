"""The command line: one file per command, and a few that they share.

It may know `node` (for `up`), `log` (for the offline commands) and `config`; whatever talks to a running
broker goes through confluent-kafka like any other client. Nothing slow (rich, confluent-kafka, asyncio) is
imported at the top of a file here: `anabranch version` answers at once and `up` opens its port before that.
"""
