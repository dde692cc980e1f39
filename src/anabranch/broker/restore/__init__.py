"""A cluster from its bucket alone: what the bucket holds, what is brought back, and what is reported as lost."""
