"""The sink `files`: events as files of text, JSON, Avro or Parquet, on a disk or in an object store.

    events -> chunks -> partitions by path -> open files in a staging directory -> finished files

Guarantees:

- A file is visible completely or not at all. It is written under another name, in `.millrace` below the common
  directory of the sink's files (on this machine), or in the sink's own directory (for other file systems), synced, and
  then renamed or uploaded. An upload to S3 becomes visible when it is complete.
- An event leaves its channel only when its file has its final name. Until then, its delivery is unsettled.
- Each event is in exactly one finished file, also after crashes of the server or the machine, provided that the sink is
  the only consumer of its channel and its own directory is preserved. Receipts (see `sink_directory`) list the finished
  events that are not settled yet; events that the channel delivers again are compared with them. This requires a file
  system that can tell whether a file exists: a local disk, HDFS or S3. There is one exception: if a crash occurs
  between the publication of a file and the confirmation of its receipt, and the file is moved away before the next
  start, its events are written again.
- No file is overwritten.
"""
