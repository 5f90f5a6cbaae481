"""Three brokers of each kind, compared on one machine."""
