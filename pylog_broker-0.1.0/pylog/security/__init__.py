"""Who a client is and what it may do: TLS, SASL, credentials, access rules, the audit log."""
