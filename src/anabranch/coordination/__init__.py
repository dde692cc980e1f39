"""Who works on what: the pure half of consumer groups.

No loop, clock, disk or chance: events with the time in them come in, effects come out. `broker.coordination` carries
them out.
"""
