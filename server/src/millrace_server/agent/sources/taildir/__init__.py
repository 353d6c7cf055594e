"""The source `taildir`: lines of files that grow, are rotated and go away."""
