"""How cost grows with the number and the size of things, beside Apache Kafka."""
