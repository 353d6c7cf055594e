"""The sink `files`: events as files of text, JSON, Avro or Parquet, on a disk or in an object store.

    events -> chunks -> partitions by path -> open files in a staging directory -> finished files under their names

What it promises:

- A file is there whole or not at all. It is written under another name, in `.millrace` below the directory that all
  files of the sink have in common (on this machine), or in the sink's own directory (for other file systems), synced,
  and then renamed or sent. An upload to S3 is seen when it is complete.
- An event leaves its channel only when the file that holds it has its final name. Until then its delivery is held.
- Each event is in exactly one finished file, through crashes of the server and of the machine, as long as the sink
  alone empties its channel, and its own directory is kept. What was finished and not settled yet is written down in
  receipts (see `receipts`), and what a channel delivers again is compared with these. That holds wherever one can ask
  whether a file is there: on disks, HDFS and S3. One case is left: a crash in the moment between a file's final name
  and the note of it, and somebody takes the file away before the next start. Then its events come a second time.
- No file is written over.
"""
