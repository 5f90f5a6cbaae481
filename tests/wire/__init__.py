"""What a broker answers at the socket: hostile input, and the same requests as Apache Kafka."""
