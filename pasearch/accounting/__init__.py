"""Arithmetic of privacy: budgets, events and what they cost. No I/O, no torch, no scikit-learn."""
