"""How the noise changes from epoch to epoch: the papers' decays, and one that is steered."""
