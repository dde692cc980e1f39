"""A clock, disk, network, object store and event loop that obey a seed and fail on purpose."""
