"""Privacy accounting: budgets, events and their cost. No I/O, no torch, no scikit-learn."""
