"""`python -m millrace_server` is `millraced`."""

from millrace_server.cli import main

if __name__ == "__main__":
    main()
