"""What the broker reports about itself, over HTTP and off the hot path."""
