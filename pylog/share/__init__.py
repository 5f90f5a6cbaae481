"""Share groups on the partition leader: acquire, acknowledge and release records."""
