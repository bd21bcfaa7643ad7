"""Architectures and the search spaces they are drawn from. Nothing here reads data."""
