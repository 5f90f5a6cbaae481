"""Durability after kill -9, power cuts, full disks and failing flushes."""
