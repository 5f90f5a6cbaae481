"""A broker's responses at the socket: hostile input, and the same requests as Apache Kafka."""
