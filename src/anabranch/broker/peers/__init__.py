"""What brokers say to each other: the messages, their bytes, and the life of a broker among others."""
