"""The layout of what lies in an object store: names, coordinates, the bytes of an object, and how objects are merged.

Pure: bytes and numbers in, bytes and decisions out. Known to brokers and to jobs on Spark alike.
"""
