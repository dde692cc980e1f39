"""The object store: the only room that speaks to one, and always through the `ObjectStore` protocol."""
