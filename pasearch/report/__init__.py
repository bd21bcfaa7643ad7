"""What a person reads: the plan before a run, the privacy card after it."""
