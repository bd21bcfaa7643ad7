"""How a record's gradient is bounded: one file a way."""
