"""Who a client is and what it may do: SASL, credentials, access rules, the audit log."""
