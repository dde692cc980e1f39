"""Group coordination on the loop: carries out what `coordination.groups` decides, and writes it to the offsets log.

`coordinator` is what request handlers see; `shard` is one partition of the `__consumer_offsets` log with its groups.
"""
