"""The wire: the generated contract (`millrace.v1`) and the column form of events (`millrace.columns`). No gRPC here."""
