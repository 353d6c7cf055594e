"""All the claims of a stream."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.lookup import CALL_SECONDS_MAX, find_shards
from millrace_spark.patience import PASSING, STARTING, Patience
from millrace_spark.reader_id import reader_id_of
from millrace_spark.reading.claiming import claim_anew
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.reading.shard_claim import ShardClaim, ShardRequest, ShardView
from millrace_spark.refusals import explained
from millrace_spark.shards import Shard, is_pattern

LOOK_SECONDS = 5.0
"""How often it is looked for channels that have come."""

_RELEASE_SECONDS_MAX = 2.0
_THREADS_MAX = 16

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
        self.news = threading.Condition()
        self._claims: dict[Shard, ShardClaim] = {}
        self._is_released = threading.Event()
        self._clients = {
            endpoint: millrace.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX) for endpoint in options.endpoints
        }
        try:
            for shard in find_shards(self._clients, options.channels):
                self._begin(shard, self._patience_at_start())
        except BaseException:
            self.release()
            raise
        if self._may_have_more():
            threading.Thread(target=self._look_for_more, name="millrace-lookout", daemon=True).start()

    @property
    def views(self) -> dict[Shard, ShardView]:
        """Each shard as its server's last answer showed it."""
        with self.news:
            return {shard: claim.view for shard, claim in self._claims.items()}

    @property
    def lease_seconds(self) -> dict[Shard, float]:
        """The lease of each claim."""
        with self.news:
            return {shard: claim.lease_seconds for shard, claim in self._claims.items()}

    def ask(self, requests: Mapping[Shard, ShardRequest]) -> None:
        """Has shards work on requests, in place of those before."""
        with self.news:
            for shard, request in requests.items():
                if shard in self._claims:
                    self._claims[shard].ask(request)

    def ready_views(self) -> dict[Shard, ShardView]:
        """Those of the shards of which is known what they have."""
        with self.news:
            known = {shard: claim.view for shard, claim in self._claims.items() if claim.is_known()}
            return {shard: view for shard, view in known.items() if view.is_ready}

    def mean_body_bytes(self, shards: Iterable[Shard]) -> dict[Shard, float]:
        """The mean size of what is in each channel; without those that cannot be asked just now."""
        sizes = {}
        for shard in shards:
            with contextlib.suppress(millrace.MillraceError):
                gauges = self._clients[shard.endpoint].admin.get_channel(shard.channel).gauges
                sizes[shard] = gauges.body_bytes / max(gauges.queued_events + gauges.taken_events, 1)
        return sizes

    def are_known(self) -> bool:
        """Whether of each shard is known what it has, or cannot be just now."""
        with self.news:
            return all(claim.is_known() for claim in self._claims.values())

    def have_acknowledged(self) -> bool:
        """Whether each shard has acknowledged what it was asked to, or cannot just now."""
        with self.news:
            return all(claim.has_acknowledged() for claim in self._claims.values())

    def wait_for(self, is_enough: Callable[[], bool], seconds_max: float) -> bool:
        """Waits for news until there are enough; tells whether there are."""
        with self.news:
            return self.news.wait_for(is_enough, max(seconds_max, 0.0))

    def mend(self, shard: Shard) -> None:
        """Claims a shard anew whose claim has ended with its lease, or with the making of its channel.

        Raises:
            MillraceSparkError: Another reader has it now, or the server cannot be reached.
            ChannelNotFoundError: There is no such channel any more.
        """
        # A server that is away for a moment must not end the query.
        patience = Patience(self.options.retry_seconds, PASSING | STARTING, pause=self._is_released.wait)
        with explained(shard.endpoint, shard.channel, but=(millrace.ChannelNotFoundError,)):
            info = patience.have(lambda: self._clients[shard.endpoint].admin.get_channel(shard.channel))
        view = self._claims[shard].view
        if info.channel_id == view.channel_id and info.claim is not None:
            raise MillraceSparkError(
                f"channel {shard}: reader {info.claim.reader_id!r} has taken over the claim of this query, whose "
                f"reader is {self.options.reader_id!r}; stop one of them, or give each query channels of its own"
            )
        _log.warning("channel %s: %s; claiming anew", shard, view.lost)
        self._begin(shard, patience)

    def drop(self, shard: Shard) -> None:
        """Goes on without a shard whose channel is gone."""
        with self.news:
            self._claims.pop(shard).forget()

    def release(self) -> None:
        """Ends all claims, as far as the servers can be reached soon; may be repeated."""
        self._is_released.set()
        with self.news:
            claims = list(self._claims.values())
            self._claims.clear()
        if claims:
            releasing = ThreadPoolExecutor(min(len(claims), _THREADS_MAX), thread_name_prefix="millrace-release")
            wait([releasing.submit(claim.release) for claim in claims], _RELEASE_SECONDS_MAX)
            releasing.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _begin(self, shard: Shard, patience: Patience) -> None:
        channel = self._clients[shard.endpoint].channel(shard.channel)
        with explained(shard.endpoint, shard.channel):
            granted = patience.have(
                lambda: claim_anew(channel, self.options, self.options.retry_seconds, pause=self._is_released.wait)
            )
        claim = ShardClaim(shard, granted, self.news)
        with self.news:
            former = self._claims.get(shard)
            self._claims[shard] = claim
            self.news.notify_all()
        if former is not None:
            former.forget()

    def _patience_at_start(self) -> Patience:
        # Whoever has named a wrong server is told at once; one that is starting or ending something is waited for.
        return Patience(self.options.retry_seconds, STARTING, pause=self._is_released.wait)

    def _may_have_more(self) -> bool:
        channels = self.options.channels
        return any(map(is_pattern, channels)) or len(self._claims) < len(channels) * len(self._clients)

    def _look_for_more(self) -> None:
        """Claims channels that have come, on servers that were there from the start."""
        while not self._is_released.wait(LOOK_SECONDS):
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
            self._begin(shard, self._patience_at_start())
        except MillraceSparkError as error:
            # What is another's, or gone again already, must not end the query that reads the others.
            _log.warning("%s; the query goes on without it, and will try again", error)
        else:
            _log.info("channel %s: joined", shard)
