"""Classic consumer groups: who is a member, who may commit, and the records that say so.

`classic_group` is one group; `joining` and `rebalancing` are its phases; `records` are Kafka's own formats of the
`__consumer_offsets` log.
"""
