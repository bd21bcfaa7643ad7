"""Infrastructure of a run: folder, ledgers, keys, exact noise, store of trials, executors."""
