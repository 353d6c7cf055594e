"""Who may do what: identities and their credentials, roles, quotas, and the audit log."""
