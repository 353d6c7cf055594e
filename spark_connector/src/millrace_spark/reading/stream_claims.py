"""The claims of a stream on all its shards."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.claim_keeper import reclaim
from millrace_spark.reading.options import ClaimOptions, reader_id_of
from millrace_spark.reading.shard_claim import ShardClaim, ShardRequest, ShardView, ends_claim
from millrace_spark.servers import CALL_SECONDS_MAX, STARTING, TRANSIENT, RetryPolicy, find_shards, translated_errors
from millrace_spark.shards import Shard, is_pattern

DISCOVERY_SECONDS = 5.0
"""The interval of the search for new channels."""

_RESPONSE_SECONDS_MAX = 2.0
_RELEASE_SECONDS_MAX = 2.0
_THREADS_MAX = 16

Response = TypeVar("Response")

_log = logging.getLogger("millrace_spark")


class StreamClaims:
    """Claims every shard of a stream, and keeps the claims until they are released.

    Raises:
        MillraceSparkError: A server is unreachable, or refuses. No claim is left behind.
    """

    def __init__(self, options: ClaimOptions) -> None:
        # The id contains the process, so that a second query of the same application is refused like any other reader.
        self.options = replace(options, reader_id=options.reader_id or reader_id_of(os.getpid()))
        self.changed = threading.Condition()
        self._claims: dict[Shard, ShardClaim] = {}
        self._body_bytes: dict[Shard, float] = {}
        self._failing_since: dict[Shard, float] = {}
        self._refusals: dict[Shard, str] = {}
        self._releasing = threading.Lock()
        self._is_released = threading.Event()
        self._discovery: threading.Thread | None = None
        self._clients = {
            endpoint: options.security.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX)
            for endpoint in options.endpoints
        }
        try:
            for shard in find_shards(self._clients, options.channels):
                self._begin(shard, self._startup_retries())
        except BaseException:
            self.release()
            raise
        channels = options.channels
        if any(map(is_pattern, channels)) or len(self._claims) < len(channels) * len(self._clients):
            self._start_discovery()

    @property
    def views(self) -> dict[Shard, ShardView]:
        """The state of each shard by its server's last response."""
        with self.changed:
            return {shard: claim.view for shard, claim in self._claims.items()}

    def request(self, requests: Mapping[Shard, ShardRequest]) -> None:
        with self.changed:
            for shard, request in requests.items():
                if shard in self._claims:
                    self._claims[shard].request(request)

    def ready_views(self) -> dict[Shard, ShardView]:
        """Returns the views of the shards that have responded to their request."""
        with self.changed:
            known = {shard: claim.view for shard, claim in self._claims.items() if claim.is_known()}
            return {shard: view for shard, view in known.items() if view.is_ready}

    def mean_body_bytes(self, shards: Iterable[Shard]) -> dict[Shard, float]:
        """Returns the mean body size of each channel by its last response; omits channels without one."""
        shards = set(shards)
        sizes = self._query(dict.fromkeys(shards, self._mean_size))
        self._body_bytes.update((shard, size) for shard, size in sizes.items() if size is not None)
        return {shard: size for shard, size in self._body_bytes.items() if shard in shards}

    def first_events(self, from_sequences: Mapping[Shard, int]) -> dict[Shard, int | None]:
        """Returns the first event of each shard at or after a sequence, or None; omits shards that do not respond."""

        def ask(shard: Shard) -> int | None:
            return self._claims[shard].first_event(from_sequences[shard])

        return self._query(dict.fromkeys(from_sequences, ask))

    def bounds_since(self, time: datetime) -> Bounds:
        """Returns where the events that were committed at or after a time begin in each shard."""
        found = {}
        for shard in self.views:
            retries = RetryPolicy(self.options.retry_seconds, TRANSIENT, pause=self._sleep)
            channel = self._clients[shard.endpoint].channel(shard.channel)
            with translated_errors(shard.endpoint, shard.channel):
                found[shard] = retries.call(partial(channel.find_sequence, time)).sequence
        return Bounds.since(found, {shard: view.next_sequence for shard, view in self.views.items()})

    def all_known(self) -> bool:
        """Whether each shard has responded to its request, or cannot at the moment."""
        with self.changed:
            return all(claim.is_known() for claim in self._claims.values())

    def all_settled(self) -> bool:
        """Whether each shard has acknowledged its request, or cannot at the moment."""
        with self.changed:
            return all(claim.is_settled() for claim in self._claims.values())

    def unacknowledged(self) -> list[Shard]:
        with self.changed:
            return sorted(shard for shard, claim in self._claims.items() if not claim.is_acknowledged())

    def wait_for(self, is_enough: Callable[[], bool], seconds_max: float) -> bool:
        """Waits until a condition on the views holds; returns whether it does."""
        with self.changed:
            return self.changed.wait_for(is_enough, max(seconds_max, 0.0))

    def recover_claim(self, shard: Shard) -> None:
        """Claims a shard again after its lease has expired, or its channel was created again.

        Raises:
            MillraceSparkError: Another reader holds the claim, or the server is unreachable.
            ChannelNotFoundError: The channel was deleted.
        """
        # A short outage of a server must not end the query.
        retries = RetryPolicy(self.options.retry_seconds, TRANSIENT, pause=self._sleep)
        with translated_errors(shard.endpoint, shard.channel, but=(millrace.ChannelNotFoundError,)):
            info = retries.call(lambda: self._clients[shard.endpoint].admin.get_channel(shard.channel))
        view = self._claims[shard].view
        if info.channel_id == view.channel_id and info.claim is not None:
            raise MillraceSparkError(
                f"channel {shard}: reader {info.claim.reader_id!r} has taken over the claim of this query, whose "
                f"reader is {self.options.reader_id!r}; stop one of them, or give each query channels of its own"
            )
        _log.warning("channel %s: %s; claiming again", shard, view.lost)
        self._begin(shard, retries)

    def drop(self, shard: Shard) -> None:
        """Removes a shard whose channel was deleted, until there is a channel of that name again."""
        with self.changed:
            self._claims.pop(shard).stop()
        self._start_discovery()

    def release(self) -> None:
        """Ends all claims whose servers respond in time. Another call waits for the first.

        The views remain, so that a thread which is planning meanwhile does not take the channels for deleted ones.
        """
        with self._releasing:
            if self._is_released.is_set():
                return
            self._is_released.set()
            with self.changed:
                claims = list(self._claims.values())
            if claims:
                releasing = ThreadPoolExecutor(min(len(claims), _THREADS_MAX), thread_name_prefix="millrace-release")
                wait([releasing.submit(claim.release) for claim in claims], _RELEASE_SECONDS_MAX)
                releasing.shutdown(wait=False, cancel_futures=True)
            if self._discovery is not None:
                # It may be about to receive a claim, and needs the connection to release it.
                self._discovery.join(_RELEASE_SECONDS_MAX)
            for client in self._clients.values():
                client.close()

    def _query(self, questions: Mapping[Shard, Callable[[Shard], Response]]) -> dict[Shard, Response]:
        """Calls all servers in parallel; returns the responses that arrive in time.

        Raises:
            MillraceSparkError: A server refuses, or has not responded for too long.
        """
        if not questions:
            return {}
        executor = ThreadPoolExecutor(min(len(questions), _THREADS_MAX), thread_name_prefix="millrace-query")
        futures = {executor.submit(call, shard): shard for shard, call in questions.items()}
        responded, late = wait(futures, _RESPONSE_SECONDS_MAX)
        executor.shutdown(wait=False, cancel_futures=True)
        responses = {}
        for future in responded:
            shard = futures[future]
            try:
                responses[shard] = future.result()
                self._failing_since.pop(shard, None)
            except millrace.MillraceError as error:
                self._record_failure(shard, error)
        for future in late:
            self._record_failure(futures[future], millrace.DeadlineError("the server is slow to describe the channel"))
        return responses

    def _record_failure(self, shard: Shard, error: millrace.MillraceError) -> None:
        if ends_claim(error) or isinstance(error, millrace.SequenceGoneError):
            # The shard's claim fails in the same way, and is claimed again; or its next response shows what is gone.
            return
        since = self._failing_since.setdefault(shard, time.monotonic())
        is_passing = error.advice in TRANSIENT or isinstance(error, millrace.UnauthenticatedError)
        if not is_passing or time.monotonic() - since > self.options.retry_seconds:
            with translated_errors(shard.endpoint, shard.channel):
                raise error

    def _mean_size(self, shard: Shard) -> float | None:
        """Returns None for an empty channel, which says nothing about the size of its next events."""
        gauges = self._clients[shard.endpoint].admin.get_channel(shard.channel).gauges
        count = gauges.queued_events + gauges.taken_events
        return gauges.body_bytes / count if count else None

    def _begin(self, shard: Shard, retries: RetryPolicy) -> None:
        channel = self._clients[shard.endpoint].channel(shard.channel)
        with translated_errors(shard.endpoint, shard.channel):
            granted = retries.call(
                lambda: reclaim(channel, self.options, self.options.retry_seconds, pause=self._sleep)
            )
        if not self._keep(shard, granted):
            # The stream was closed in the meantime, and would not release this claim.
            with contextlib.suppress(millrace.MillraceError):
                granted.release()

    def _keep(self, shard: Shard, granted: millrace.Claim) -> bool:
        """Replaces a shard's former claim; returns False if the claims were released."""
        with self.changed:
            if self._is_released.is_set():
                return False
            if (former := self._claims.get(shard)) is not None:
                former.stop()
            self._claims[shard] = ShardClaim(shard, granted, self.changed)
            self.changed.notify_all()
            return True

    def _sleep(self, seconds: float) -> None:
        """Sleeps between attempts; raises a MillraceSparkError once the claims are released."""
        if self._is_released.wait(seconds):
            raise MillraceSparkError("the query was stopped while a channel was being claimed")

    def _startup_retries(self) -> RetryPolicy:
        # An unreachable server may be misspelt, and is an error at once; one that is still starting is retried.
        return RetryPolicy(self.options.retry_seconds, STARTING, pause=self._sleep)

    def _start_discovery(self) -> None:
        if self._discovery is None:
            self._discovery = threading.Thread(target=self._discover_channels, name="millrace-discovery", daemon=True)
            self._discovery.start()

    def _discover_channels(self) -> None:
        """Claims new channels, on the servers of the options."""
        while not self._is_released.wait(DISCOVERY_SECONDS):
            try:
                found = find_shards(self._clients, self.options.channels)
            except MillraceSparkError:
                # The claims on that server report the outage.
                continue
            for shard in found:
                if shard not in self.views and not self._is_released.is_set():
                    self._join(shard)

    def _join(self, shard: Shard) -> None:
        try:
            self._begin(shard, self._startup_retries())
        except MillraceSparkError as error:
            # A channel that another reader holds, or that is deleted already, must not end the query.
            if not self._is_released.is_set() and self._refusals.get(shard) != str(error):
                self._refusals[shard] = str(error)
                _log.warning("%s; the query continues without it and will try again", error)
        else:
            self._refusals.pop(shard, None)
            _log.info("channel %s: joined", shard)
