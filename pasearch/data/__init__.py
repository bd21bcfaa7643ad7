"""Data: fixed slots, value-independent partitions, and reads that must be charged."""
