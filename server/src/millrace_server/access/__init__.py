"""Access control: identities and their credentials, roles, quotas, and the audit log."""
