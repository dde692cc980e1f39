"""Topics and their partitions on this broker: what is open, where its files are, and who leads the rest."""
