"""The millraced process: start, signals, reload, exit."""
