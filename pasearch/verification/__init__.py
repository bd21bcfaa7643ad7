"""Verification of a finished run from its public numbers, and signatures."""
