"""What is measured, one module a scenario."""
