"""The engine of `Producer` and `AsyncProducer`: events are added to pages, pages become batches, batches are sent.

Only `accumulator` is shared by threads; everything else runs on one event loop. `Producer` documents the guarantees.
"""
