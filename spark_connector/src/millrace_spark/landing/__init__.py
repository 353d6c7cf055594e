"""Landing: channels become folders of Parquet files, each event once. The program is `millrace-spark land`.

`LandingConfig` says what is to be done, `publication` and `swap` argue why a crash neither loses nor doubles anything.
"""
