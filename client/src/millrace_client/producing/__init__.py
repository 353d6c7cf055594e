"""The engine of `Producer` and `AsyncProducer`: events gather in pages, pages become batches, batches go up streams.

`intake` is the only part that threads share; all else runs on one event loop. What is promised stands in
`millrace_client.producer`.
"""
