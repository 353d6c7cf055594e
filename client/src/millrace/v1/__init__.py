"""The wire contract `millrace.v1`, generated from protos/ by `make proto`."""
