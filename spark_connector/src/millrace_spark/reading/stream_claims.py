"""All the claims of a stream."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.reading.claim_keeper import reclaim
from millrace_spark.reading.options import ClaimOptions, reader_id_of
from millrace_spark.reading.shard_claim import ShardClaim, ShardRequest, ShardView, ends_claim
from millrace_spark.refusals import explained
from millrace_spark.servers import CALL_SECONDS_MAX, STARTING, TRANSIENT, RetryPolicy, find_shards
from millrace_spark.shards import Shard, is_pattern

DISCOVERY_SECONDS = 5.0
"""How often it is looked for channels that have come."""

_ANSWER_SECONDS_MAX = 2.0
_RELEASE_SECONDS_MAX = 2.0
_THREADS_MAX = 16

Answer = TypeVar("Answer")

_log = logging.getLogger("millrace_spark")


class StreamClaims:
    """Claims every shard that a stream reads, and keeps the claims until they are released.

    Args:
        options: What to claim, and how.

    Raises:
        MillraceSparkError: A server cannot be reached, or refuses. No claim is left behind.
    """

    def __init__(self, options: ClaimOptions) -> None:
        # Processes are told apart, so that a second query of the same application is refused as any other reader is.
        self.options = replace(options, reader_id=options.reader_id or reader_id_of(os.getpid()))
        self.changed = threading.Condition()
        self._claims: dict[Shard, ShardClaim] = {}
        self._body_bytes: dict[Shard, float] = {}
        self._failing_since: dict[Shard, float] = {}
        self._is_released = threading.Event()
        self._discovery: threading.Thread | None = None
        self._clients = {
            endpoint: millrace.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX) for endpoint in options.endpoints
        }
        try:
            for shard in find_shards(self._clients, options.channels):
                self._begin(shard, self._startup_retries())
        except BaseException:
            self.release()
            raise
        if self._can_discover():
            self._discovery = threading.Thread(target=self._discover_channels, name="millrace-lookout", daemon=True)
            self._discovery.start()

    @property
    def views(self) -> dict[Shard, ShardView]:
        """Each shard as its server's last answer showed it."""
        with self.changed:
            return {shard: claim.view for shard, claim in self._claims.items()}

    @property
    def lease_seconds(self) -> dict[Shard, float]:
        """The lease of each claim."""
        with self.changed:
            return {shard: claim.lease_seconds for shard, claim in self._claims.items()}

    def ask(self, requests: Mapping[Shard, ShardRequest]) -> None:
        """Has shards work on requests, in place of those before."""
        with self.changed:
            for shard, request in requests.items():
                if shard in self._claims:
                    self._claims[shard].ask(request)

    def ready_views(self) -> dict[Shard, ShardView]:
        """Those of the shards of which is known what they have."""
        with self.changed:
            known = {shard: claim.view for shard, claim in self._claims.items() if claim.is_known()}
            return {shard: view for shard, view in known.items() if view.is_ready}

    def mean_body_bytes(self, shards: Iterable[Shard]) -> dict[Shard, float]:
        """The mean size of what is in each channel, as it was last told; without those that have never told.

        Raises:
            MillraceSparkError: A server refuses to tell, or has not for too long.
        """
        shards = set(shards)
        sizes = self._query(dict.fromkeys(shards, self._mean_size))
        self._body_bytes.update((shard, size) for shard, size in sizes.items() if size is not None)
        return {shard: size for shard, size in self._body_bytes.items() if shard in shards}

    def first_events(self, from_sequences: Mapping[Shard, int]) -> dict[Shard, int | None]:
        """The first event at or behind a sequence, None where there is none; without shards that do not answer.

        Raises:
            MillraceSparkError: A server refuses to tell, or has not for too long.
        """
        questions = {shard: partial(self._first_event, sequence) for shard, sequence in from_sequences.items()}
        return self._query(questions)

    def all_known(self) -> bool:
        """Whether of each shard is known what it has, or cannot be just now."""
        with self.changed:
            return all(claim.is_known() for claim in self._claims.values())

    def all_settled(self) -> bool:
        """Whether each shard has acknowledged what it was asked to, or cannot just now."""
        with self.changed:
            return all(claim.is_settled() for claim in self._claims.values())

    def unacknowledged(self) -> list[Shard]:
        """Those that have not acknowledged what they were asked to."""
        with self.changed:
            return sorted(shard for shard, claim in self._claims.items() if not claim.is_acknowledged())

    def wait_for(self, is_enough: Callable[[], bool], seconds_max: float) -> bool:
        """Waits for news until there are enough; tells whether there are."""
        with self.changed:
            return self.changed.wait_for(is_enough, max(seconds_max, 0.0))

    def recover_claim(self, shard: Shard) -> None:
        """Claims a shard anew whose claim has ended with its lease, or with the making of its channel.

        Raises:
            MillraceSparkError: Another reader has it now, or the server cannot be reached.
            ChannelNotFoundError: There is no such channel any more.
        """
        # A server that is away for a moment must not end the query.
        retries = RetryPolicy(self.options.retry_seconds, TRANSIENT, pause=self._pause)
        with explained(shard.endpoint, shard.channel, but=(millrace.ChannelNotFoundError,)):
            info = retries.call(lambda: self._clients[shard.endpoint].admin.get_channel(shard.channel))
        view = self._claims[shard].view
        if info.channel_id == view.channel_id and info.claim is not None:
            raise MillraceSparkError(
                f"channel {shard}: reader {info.claim.reader_id!r} has taken over the claim of this query, whose "
                f"reader is {self.options.reader_id!r}; stop one of them, or give each query channels of its own"
            )
        _log.warning("channel %s: %s; claiming anew", shard, view.lost)
        self._begin(shard, retries)

    def drop(self, shard: Shard) -> None:
        """Goes on without a shard whose channel is gone."""
        with self.changed:
            self._claims.pop(shard).forget()

    def release(self) -> None:
        """Ends all claims, as far as the servers can be reached soon; may be repeated."""
        self._is_released.set()
        with self.changed:
            claims = list(self._claims.values())
            self._claims.clear()
        if claims:
            releasing = ThreadPoolExecutor(min(len(claims), _THREADS_MAX), thread_name_prefix="millrace-release")
            wait([releasing.submit(claim.release) for claim in claims], _RELEASE_SECONDS_MAX)
            releasing.shutdown(wait=False, cancel_futures=True)
        if self._discovery is not None:
            # It may just be granted a claim, and needs the connection to give it back.
            self._discovery.join(_RELEASE_SECONDS_MAX)
        for client in self._clients.values():
            client.close()

    def _query(self, questions: Mapping[Shard, Callable[[Shard], Answer]]) -> dict[Shard, Answer]:
        """The answers that come soon; all servers are asked at once, so that one that is slow holds nobody up."""
        if not questions:
            return {}
        asking = ThreadPoolExecutor(min(len(questions), _THREADS_MAX), thread_name_prefix="millrace-ask")
        futures = {asking.submit(ask, shard): shard for shard, ask in questions.items()}
        answered, late = wait(futures, _ANSWER_SECONDS_MAX)
        asking.shutdown(wait=False, cancel_futures=True)
        answers = {}
        for future in answered:
            shard = futures[future]
            try:
                answers[shard] = future.result()
                self._failing_since.pop(shard, None)
            except millrace.MillraceError as error:
                self._record_failure(shard, error)
        for future in late:
            shard = futures[future]
            self._record_failure(shard, millrace.DeadlineError("the server is slow to tell what the channel holds"))
        return answers

    def _record_failure(self, shard: Shard, error: millrace.MillraceError) -> None:
        if ends_claim(error):
            # The shard's claim finds the same, and is mended where it can be.
            return
        since = self._failing_since.setdefault(shard, time.monotonic())
        is_passing = error.advice in TRANSIENT
        if not is_passing or time.monotonic() - since > self.options.retry_seconds:
            with explained(shard.endpoint, shard.channel):
                raise error

    def _mean_size(self, shard: Shard) -> float | None:
        """None where the channel is empty, which says nothing of the events to come."""
        gauges = self._clients[shard.endpoint].admin.get_channel(shard.channel).gauges
        count = gauges.queued_events + gauges.taken_events
        return gauges.body_bytes / count if count else None

    def _first_event(self, from_sequence: int, shard: Shard) -> int | None:
        batches = self._clients[shard.endpoint].channel(shard.channel).peek(from_sequence, max_events=1)
        return next((batch.first_sequence for batch in batches), None)

    def _begin(self, shard: Shard, retries: RetryPolicy) -> None:
        channel = self._clients[shard.endpoint].channel(shard.channel)
        with explained(shard.endpoint, shard.channel):
            granted = retries.call(
                lambda: reclaim(channel, self.options, self.options.retry_seconds, pause=self._pause)
            )
        if not self._keep(shard, granted):
            # The stream was closed meanwhile, and nobody would end this claim.
            with contextlib.suppress(millrace.MillraceError):
                granted.release()

    def _keep(self, shard: Shard, granted: millrace.Claim) -> bool:
        """Has a claim kept in place of the shard's former one; tells whether it is."""
        with self.changed:
            if self._is_released.is_set():
                return False
            if (former := self._claims.get(shard)) is not None:
                former.forget()
            self._claims[shard] = ShardClaim(shard, granted, self.changed)
            self.changed.notify_all()
            return True

    def _pause(self, seconds: float) -> None:
        """Waits between attempts.

        Raises:
            MillraceSparkError: The claims were released; no other attempt is to be made.
        """
        if self._is_released.wait(seconds):
            raise MillraceSparkError("the query was stopped while a channel was being claimed")

    def _startup_retries(self) -> RetryPolicy:
        # Whoever has named a wrong server is told at once; one that is starting or ending something is waited for.
        return RetryPolicy(self.options.retry_seconds, STARTING, pause=self._pause)

    def _can_discover(self) -> bool:
        channels = self.options.channels
        return any(map(is_pattern, channels)) or len(self._claims) < len(channels) * len(self._clients)

    def _discover_channels(self) -> None:
        """Claims channels that have come, on servers that were there from the start."""
        while not self._is_released.wait(DISCOVERY_SECONDS):
            try:
                found = find_shards(self._clients, self.options.channels)
            except MillraceSparkError:
                # A server is away, which the claims on it tell, too.
                continue
            for shard in found:
                if shard not in self.views and not self._is_released.is_set():
                    self._join(shard)

    def _join(self, shard: Shard) -> None:
        try:
            self._begin(shard, self._startup_retries())
        except MillraceSparkError as error:
            # What is another's, or gone again already, must not end the query that reads the others.
            if not self._is_released.is_set():
                _log.warning("%s; the query goes on without it, and will try again", error)
        else:
            _log.info("channel %s: joined", shard)
