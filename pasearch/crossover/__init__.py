"""Simple or complex, at which epsilon: forecasts of where the best model changes."""
