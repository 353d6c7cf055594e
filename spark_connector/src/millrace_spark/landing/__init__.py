"""Landing: writes channels to folders of Parquet files, each event once. The program is `millrace-spark land`.

`LandingConfig` holds the configuration; `publication` and `swap` explain why a crash neither loses nor duplicates rows.
"""
