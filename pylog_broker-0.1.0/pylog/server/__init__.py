"""What joins the parts of one broker while it runs."""
