"""Who is there and who owns what: the tables everybody must agree on.

Pure: no sockets, files, clocks or threads. Entries come in the order of the metadata log and are applied one
by one; the same entries give the same table on every broker. The broker room keeps the log they come from.
"""
