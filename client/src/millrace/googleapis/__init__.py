"""google.rpc.Status and its details, without needing googleapis-common-protos.

A message type may be registered once in a process. So where googleapis-common-protos is installed its modules are used,
and only where it is not, the copies generated next to this file.
"""

try:
    from google.rpc import error_details_pb2, status_pb2
except ImportError:
    from millrace.googleapis.rpc import error_details_pb2, status_pb2

__all__ = ["error_details_pb2", "status_pb2"]
