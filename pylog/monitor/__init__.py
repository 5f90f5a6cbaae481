"""What the broker tells about itself, over HTTP and off the hot path."""
