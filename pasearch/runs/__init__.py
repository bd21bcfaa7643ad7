"""What a run keeps: its folder, its ledger of charges, its secret keys, its store of trials."""
