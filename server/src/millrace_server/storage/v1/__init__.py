"""The messages in records and checkpoints, generated from protos/ by `make proto`."""
