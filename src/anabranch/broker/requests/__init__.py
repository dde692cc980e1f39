"""A request on its way through the broker: its call, its share of time and memory, and whoever else must carry it
out."""
