"""The Kafka protocol without sockets: frames, headers, and every message as a table of fields.

Pure: bytes in, values out, and the other way round. It may know Kafka's numbers, names and layouts; it knows
no topic, no log, no clock and no connection. Whatever a peer sends, only `ProtocolError` (or a kind of it)
comes out, and no length is believed before it was compared with the bytes that are really there.
Importing this room loads no table: schemas are read, and codecs built, on first use.
"""
