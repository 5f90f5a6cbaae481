"""pylog's tests; sub-packages mirror the tree of pylog/ and csrc/."""
