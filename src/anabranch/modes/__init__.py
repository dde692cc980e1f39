"""When is a record safe: the durability modes, one file each behind the `Mode` protocol.

Pure: no sockets, files, clocks or threads. A mode is told what happened and answers with what should happen;
`broker.topics.partition` carries it out. Read `solo` first.
"""
