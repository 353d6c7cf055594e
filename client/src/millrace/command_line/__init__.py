"""What the programs `millrace`, `millraced` and `millrace-spark` share: help, notes, tables and failing output.

The modules `program` and `tables` need the packages typer and rich.
"""
