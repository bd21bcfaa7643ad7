"""Data: schemas, value-independent partitions, and access to private records under a charge."""
