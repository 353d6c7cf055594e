"""The source `taildir`, which follows growing files."""
