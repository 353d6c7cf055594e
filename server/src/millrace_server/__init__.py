"""The daemon of Millrace: transactional channels as a gRPC service."""
