"""Cost as a function of number and size, compared with Apache Kafka."""
