"""Three brokers of each kind beside each other on one machine."""
