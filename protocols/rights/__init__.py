"""Who may do what in a network: grants, client tokens, quotas, and the record of what was refused."""
