"""Members of consumer groups that speak HTTP, through whichever broker they happen to ask.

A session lives in its group, not in the broker that serves it (decision 38).
"""
