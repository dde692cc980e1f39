"""A small blocking Kafka client: what a reader of topics asks, and nothing else."""
