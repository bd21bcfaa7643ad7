"""Search strategies: who is tried, at which price, and who wins."""
