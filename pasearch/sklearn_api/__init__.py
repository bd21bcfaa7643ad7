"""The same as scikit-learn has it: estimators and selectors that search under one budget."""
