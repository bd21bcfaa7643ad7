"""The curator's check of a table: the only package that shows values of private data.

Only the command `pasearch check` and the API may import it.
"""
