"""Nothing of this module is seen from Python: codec.Program is its caller."""
