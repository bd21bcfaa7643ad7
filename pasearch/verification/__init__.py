"""Checks a finished run from its public numbers, and signs it."""
