"""Share groups where their partitions are led: what is acquired, acknowledged, given back."""
