"""Who may do what: identities and how they are proven, roles, and what is told of refusals."""
