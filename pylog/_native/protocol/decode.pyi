"""This module has no Python interface: codec.Program calls it."""
