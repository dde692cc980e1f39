"""Mode object: partitions whose records lie in the object store.

Every broker has them open. Carries out what `modes.object` and `cluster.objects` decide.
"""
