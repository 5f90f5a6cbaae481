"""Authentication and authorization: TLS, SASL, credentials, access rules, the audit log."""
