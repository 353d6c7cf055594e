"""The source `syslog`: messages of RFC 5424 and RFC 3164 over TCP and UDP."""
