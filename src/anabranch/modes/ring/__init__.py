"""Mode ring, the decisions: who leads, which replicas are equal, what is safe, how a partition moves."""
