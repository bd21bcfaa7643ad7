"""Choosing features: tables of counts, merits, searches over sets, and models of the sets."""
