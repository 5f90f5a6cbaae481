"""What the console's pages show about groups: lag, its chart, reasons, rebalances.

Owns: nothing.
For: the views of groups.
"""
