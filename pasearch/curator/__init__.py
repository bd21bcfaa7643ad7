"""Check of a table for its curator: the only package that shows values of private data.

Only the command `pasearch check` and the API may import it.
"""
