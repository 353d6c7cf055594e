"""The engine: takes batches out of the intake, sends them, and settles what becomes of them.

It runs on one event loop and waits for nothing else: it looks whenever something has happened (an event came, an answer
came, a connection came or went) or a time has come, does what can be done, and sets a timer for the next time.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import grpc

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._failures import refusal_of
from millrace_client._settings import Numbering
from millrace_client.errors import (
    BadArgumentError,
    InternalError,
    MillraceError,
    ProducerClosedError,
    RetryAdvice,
    UnavailableError,
)
from millrace_client.producing import batches as batching
from millrace_client.producing.batches import Batch
from millrace_client.producing.callbacks import CallbackRunner, Job
from millrace_client.producing.config import ProducerConfig, Routing
from millrace_client.producing.intake import CALLBACK_BYTES, Intake, stopped_error
from millrace_client.producing.lanes import LANES, Gathering, Lane
from millrace_client.producing.metrics import (
    ProducerHooks,
    ServerMetrics,
    Tally,
)
from millrace_client.producing.pages import Page
from millrace_client.producing.resolving import Resolve, resolve_host, targets_of
from millrace_client.producing.results import Callback, Outcome, SendAttempt
from millrace_client.producing.retrying import RetrySchedule
from millrace_client.producing.routing import Router, ranked
from millrace_client.producing.servers import Credentials, Outlet, Server
from millrace_client.producing.telling import LOG, Teller

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an engine is to do."""

    endpoints: Sequence[str]
    how: Credentials
    config: ProducerConfig
    hooks: ProducerHooks | None = None
    resolve: Resolve = resolve_host

    def __post_init__(self) -> None:
        if self.config.is_resumable and len(self.endpoints) > 1:
            raise BadArgumentError(
                f"endpoints: are {len(self.endpoints)}; with producer_id there must be one, for only the server that"
                " stored an event knows it again"
            )


class Engine:
    """Sends what an intake holds. Made on an event loop, to which all methods belong unless they say otherwise."""

    def __init__(self, settings: EngineSettings, intake: Intake, tally: Tally, callbacks: CallbackRunner) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._config = settings.config
        self._intake = intake
        self._tally = tally
        self._callbacks = callbacks
        self._schedule = RetrySchedule(settings.config)
        # The addresses of one name may all be one server's, and then its numbers go on whichever is used.
        self._routing = Routing.FAILOVER if self._config.is_resumable else self._config.routing
        self._numbering = (
            Numbering(self._config.producer_id, self._config.first_number) if self._config.is_resumable else None
        )
        self._router = Router(self._routing)
        self._teller = Teller()
        self._servers: list[Server] = []
        self._retrying: list[Batch] = []
        self._retry_at: dict[Batch, float] = {}
        self._ranks: list[list[str]] = []
        self._naming_error: OSError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._is_ended = False
        self._closes_at: float | None = None
        self._given_up_count = 0
        self.drained = asyncio.Event()
        """Set once the engine is closing and nothing is left to settle."""

    # From the beginning to the end.

    def start(self) -> None:
        """Begins."""
        self._resolving = self._loop.create_task(self._resolve_for_ever())
        self._intake.run_callbacks = self.run_callbacks
        if self._settings.hooks is not None:
            self._intake.note_drops = self._note_drops

    def give_up_at(self, deadline: float) -> None:
        """Fails whatever is not settled by then. The latest of several times counts."""
        if self._closes_at is None or deadline > self._closes_at:
            self._closes_at = deadline
        self.look()

    def end(self) -> None:
        """Cuts everything off. What is not settled has failed."""
        self._give_up(self._closed_error())
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._resolving.cancel()
        for server in self._servers:
            server.close()

    def join(self, seconds: float) -> None:
        """Waits for the threads that read, after the end; for each of them at most so long. For another thread."""
        for server in self._servers:
            for thread in tuple(server.threads):
                thread.join(seconds)

    @property
    def given_up_count(self) -> int:
        """Events that were not settled when the time for closing had run out. Any thread may ask."""
        return self._given_up_count

    @property
    def retrying_count(self) -> int:
        """Batches that wait for another attempt. Any thread may ask."""
        return len(self._retrying)

    def server_metrics(self) -> list[ServerMetrics]:
        """How the servers stand. Any thread may ask."""
        now = self._loop.time()
        return [server.metrics(now) for server in tuple(self._servers)]

    async def _resolve_for_ever(self) -> None:
        while True:
            await self._resolve_once()
            await asyncio.sleep(self._config.resolve_seconds if self._servers else 1.0)

    async def _resolve_once(self) -> None:
        self._leave_retired()
        targets = []
        for endpoint in self._settings.endpoints:
            try:
                targets += await targets_of(endpoint, self._settings.resolve)
            except OSError as error:
                # Those that are known stay; a name that cannot be looked up is no reason to leave a server.
                self._naming_error = error
                targets += [server.target for server in self._servers if server.target.authority == endpoint]
        wanted = list(dict.fromkeys(targets))
        known = {server.target: server for server in self._servers}
        if set(wanted) == {target for target, server in known.items() if not server.is_retired}:
            return
        for target in wanted:
            if target not in known:
                known[target] = Server(target, self._settings.how, self._config, self)
        for target, server in known.items():
            server.is_retired = target not in wanted
        # By priority; those that were left come last, for what is still theirs.
        self._servers = [known[target] for target in wanted] + [s for s in known.values() if s.is_retired]
        self._ranks = []
        self.look()

    def _leave_retired(self) -> None:
        """Closes servers that get nothing new and have nothing left of ours."""
        doubted = {batch.doubted.server for batch in self._retrying if batch.doubted is not None}
        for server in list(self._servers):
            if server.is_retired and not server.inflight_count and server not in doubted:
                self._servers.remove(server)
                server.close()

    # Looking.

    def look(self) -> None:
        """Does what can be done now. Never fails: a mistake of this code fails the events, not whoever waits."""
        if self._is_looking or self._is_ended:
            # What happens inside is seen before the end of it: sending and settling need no second look.
            return
        self._is_looking = True
        try:
            self._intake.begin_turn()
            now = self._loop.time()
            if self._servers:
                is_any = not all(server.is_down for server in self._servers)
                self._teller.reached(is_any=is_any, names=", ".join(self._settings.endpoints))
            self._end_what_is_late(now)
            self._send_again(now)
            self._send_new(now)
            self._set_timer(now)
            if self._closes_at is not None and not self._intake.open_pages:
                self.drained.set()
        except Exception as error:  # noqa: BLE001 - a mistake here must not leave futures open for ever
            LOG.exception("the producer failed")
            self._give_up(InternalError(f"the producer failed, and this is its own fault: {error!r}"))
        finally:
            self._is_looking = False

    def _end_what_is_late(self, now: float) -> None:
        if self._closes_at is not None and now >= self._closes_at:
            self._give_up(self._closed_error())
            return
        for server in self._servers:
            for outlet in server.outlets.values():
                due = outlet.answer_due()
                if due is not None and due <= now:
                    outlet.cut_off()
        born_before = now - self._config.delivery_timeout_seconds
        for batch in [batch for batch in self._retrying if batch.timed_from <= born_before]:
            self._retrying.remove(batch)
            self._fail(batch, batch.last_error or self._unsent_error(batch.gathering.channel))
        for gathering, page in self._intake.take_older(born_before):
            error = self._unsent_error(gathering.channel)
            self._fail_page(page, Outcome(gathering.channel, error=error))
            self._stop_behind(error)

    def _send_again(self, now: float) -> None:
        for batch in sorted(self._retrying, key=lambda batch: self._retry_at[batch]):
            if self._retry_at[batch] > now:
                return
            outlet = self._outlet_again(batch, now)
            if outlet is not None:
                self._retrying.remove(batch)
                del self._retry_at[batch]
                if batch.doubted is not None and outlet is not batch.doubted:
                    batch.doubted.note_gap()
                outlet.send(batch, now)

    def _outlet_again(self, batch: Batch, now: float) -> Outlet | None:
        doubted = batch.doubted
        if doubted is not None:
            patience = self._config.move_after_seconds
            if patience is None or now < batch.doubted_at + patience:
                return doubted if doubted.has_capacity(now) else None
        lane_index = batch.lanes[0].index if batch.lanes else -1
        return self._choose(batch.gathering.channel, lane_index, now)

    def _send_new(self, now: float) -> None:
        has_sent = True
        while has_sent:
            # One batch of each channel at a time, so that none waits for all of another's.
            has_sent = False
            for gathering in list(self._intake.gatherings.values()):
                if gathering.waiting and self._send_next(gathering, now):
                    has_sent = True

    def _send_next(self, gathering: Gathering, now: float) -> bool:
        if self._routing is not Routing.BY_KEY:
            outlet = self._choose(gathering.channel, -1, now)
            return outlet is not None and self._send_to(outlet, gathering, now, _any_lane)
        # Each lane has its own server, and a batch takes lanes of one.
        outlets = {lane.index: self._choose(gathering.channel, lane.index, now) for lane in list(gathering.waiting)}
        return any(
            self._send_to(outlet, gathering, now, partial(_is_lane_of, outlets, outlet))
            for outlet in dict.fromkeys(outlets.values())
            if outlet is not None
        )

    def _send_to(self, outlet: Outlet, gathering: Gathering, now: float, accepts: Callable[[Lane], bool]) -> bool:
        pages, lanes = self._intake.take(gathering, now, accepts)
        if not pages:
            return False
        stamp = outlet.next_stamp(sum(len(page.bodies) for page in pages))
        outlet.send(batching.seal(gathering, pages, lanes, stamp, self._config.attempts_kept_max, now), now)
        return True

    def _choose(self, channel: str, lane_index: int, now: float) -> Outlet | None:
        outlets = [
            server.outlet(channel, self._schedule, self._numbering) for server in self._servers if not server.is_retired
        ]
        order: Sequence[str] = ()
        if lane_index >= 0 and self._routing is Routing.BY_KEY:
            if not self._ranks:
                names = [server.target.address for server in self._servers if not server.is_retired]
                self._ranks = [ranked(index, names) for index in range(LANES)]
            order = self._ranks[lane_index]
        return self._router.choose(outlets, order, now)

    def _set_timer(self, now: float) -> None:
        times = [] if self._closes_at is None else [self._closes_at]
        if (due := self._intake.next_due()) is not None:
            times.append(due)
        if (since := self._intake.waiting_since()) is not None:
            times.append(since + self._config.delivery_timeout_seconds)
        for batch in self._retrying:
            times += [self._retry_at[batch], batch.timed_from + self._config.delivery_timeout_seconds]
            if batch.doubted is not None and self._config.move_after_seconds is not None:
                times.append(batch.doubted_at + self._config.move_after_seconds)
        for server in self._servers:
            for outlet in server.outlets.values():
                times.append(outlet.sick_until)
                if (answer_due := outlet.answer_due()) is not None:
                    times.append(answer_due)
        if self._timer is not None:
            self._timer.cancel()
        # What is due already waits for something else than time; that will have it looked at.
        later = [moment for moment in times if moment > now]
        self._timer = self._loop.call_at(min(later), self.look) if later else None

    # What comes of batches.

    def answered(self, outlet: Outlet, batch: Batch, answer: pb.AppendStreamResponse) -> None:
        """The server has answered for a batch."""
        if answer.HasField("error"):
            code = _CODES.get(answer.error.code, grpc.StatusCode.UNKNOWN)
            error = refusal_of(answer.error.SerializeToString(), code)
            if error is None:
                error = MillraceError(answer.error.message, reason=code.name, code=code)
            error.channel = error.channel or outlet.channel
            self._note_refusal(outlet, batch, error)
        else:
            outlet.note_success()
            outlet.is_careful = outlet.is_careful and bool(self._retrying)
            self._store(outlet, batch, answer)
        self.look()

    def broken(self, outlet: Outlet, batches: Sequence[Batch], error: MillraceError) -> None:
        """A stream has ended, and will answer none of these."""
        now = self._loop.time()
        if error.reason == "MESSAGE_TOO_LARGE" and len(batches) > 1:
            # One of them is at fault; sent one by one, that will be the only one.
            outlet.is_careful = True
        is_sure = error.reason == "MESSAGE_TOO_LARGE" and len(batches) == 1
        for batch in batches:
            if not is_sure and batch.doubted is not outlet:
                # A doubt about a former server ends here: it is known by now that this one gets it.
                batch.doubted, batch.doubted_at = outlet, now
            attempt = batch.note_attempt(outlet.server.target.address, error)
            if not is_sure:
                # Otherwise the server is well: it is the batch that is at fault.
                outlet.note_failure(batch, error, now)
            if is_sure and batch.count > 1:
                self._split(batch, error)
            elif (outlet.is_careful and not is_sure) or self._schedule.is_retried_anew(error, batch.attempt_count):
                self._retry(batch, attempt, error, now)
            else:
                self._note_last_attempt(batch, attempt)
                self._fail(batch, error)
        self.look()

    def _note_refusal(self, outlet: Outlet, batch: Batch, error: MillraceError) -> None:
        now = self._loop.time()
        attempt = batch.note_attempt(outlet.server.target.address, error)
        if error.advice is RetryAdvice.SMALLER and batch.count > 1:
            self._split(batch, error)
            return
        if not error.is_outcome_known and batch.doubted is None:
            batch.doubted, batch.doubted_at = outlet, now
        if self._schedule.is_retried(error, batch.attempt_count):
            outlet.note_failure(batch, error, now)
            self._retry(batch, attempt, error, now)
        else:
            self._note_last_attempt(batch, attempt)
            self._fail(batch, error)

    def _retry(self, batch: Batch, attempt: SendAttempt, error: MillraceError, now: float) -> None:
        pause = self._schedule.pause_seconds(batch.attempt_count, error)
        if now + pause > batch.timed_from + self._config.delivery_timeout_seconds:
            self._note_last_attempt(batch, attempt)
            self._fail(batch, error)
            return
        self._tally.attempts_failed += 1
        self._tally.retries += 1
        self._teller.refused(attempt.server, batch.gathering.channel, error, pause)
        self._tell_hooks(lambda hooks: hooks.attempt_failed(batch.gathering.channel, attempt, batch.count, pause))
        self._queue(batch, now + pause)

    def _queue(self, batch: Batch, due: float) -> None:
        self._retrying.append(batch)
        self._retry_at[batch] = due

    def _note_last_attempt(self, batch: Batch, attempt: SendAttempt) -> None:
        self._tally.attempts_failed += 1
        self._tell_hooks(lambda hooks: hooks.attempt_failed(batch.gathering.channel, attempt, batch.count, None))

    def _split(self, batch: Batch, error: MillraceError) -> None:
        self._tally.attempts_failed += 1
        if error.reason == "TXN_CAPACITY":
            batch.gathering.events_max = min(batch.gathering.events_max, max(batch.count // 2, 1))
            pieces = batching.split_in_halves(batch)
        elif error.reason == "MESSAGE_TOO_LARGE":
            batch.gathering.bytes_max = min(batch.gathering.bytes_max, len(batch.request) // 2)
            pieces = batching.split_by_size(batch, batch.gathering.bytes_max)
        else:
            pieces = batching.split_around_largest(batch)
        self._queue(pieces[0], self._loop.time())

    def _store(self, outlet: Outlet, batch: Batch, answer: pb.AppendStreamResponse) -> None:
        batch.note_attempt(outlet.server.target.address, None)
        seconds = self._loop.time() - batch.born
        tally = self._tally
        tally.events_stored += batch.count
        tally.batches_stored += 1
        tally.bytes_stored += len(batch.request)
        tally.note_latency(seconds, batch.count)
        new_count = answer.last_sequence - answer.first_sequence + 1 if answer.first_sequence else 0
        tally.events_deduplicated += batch.count - new_count
        outcome = Outcome(
            batch.gathering.channel,
            first_sequence=answer.first_sequence,
            # A batch is stored as a whole, and a producer that is resumed sends again what it stored last: so what was
            # there before is all of it, or its beginning.
            repeated_count=batch.count - new_count,
            attempts=tuple(batch.attempts),
            attempt_count=batch.attempt_count,
        )
        self._tell_hooks(
            lambda hooks: hooks.batch_stored(
                batch.gathering.channel, outlet.server.target.address, batch.count, seconds
            )
        )
        self._settle(batch, outcome)

    def _fail(self, batch: Batch, error: MillraceError) -> None:
        self._retry_at.pop(batch, None)
        if batch.doubted is not None:
            batch.doubted.note_gap()
        self._tally.events_failed += batch.count
        self._teller.failed(batch.gathering.channel, batch.count, error)
        outcome = Outcome(
            batch.gathering.channel,
            attempts=tuple(batch.attempts),
            attempt_count=batch.attempt_count,
            error=error,
            is_known=batch.doubted is None,
        )
        followers = list(batch.followers)
        if batch.gathering.is_ordered:
            batch.followers.clear()
        self._settle(batch, outcome)
        if batch.gathering.is_ordered:
            for following in followers:
                self._fail(following, stopped_error(error))
            self._stop_behind(error)

    def _stop_behind(self, error: MillraceError) -> None:
        """Sends nothing behind an event that failed, where no gap may be left."""
        if not self._config.is_resumable:
            return
        self._intake.refuse_behind(error)
        for gathering, page in self._intake.take_older(math.inf):
            self._fail_page(page, Outcome(gathering.channel, error=stopped_error(error)))

    def _settle(self, batch: Batch, outcome: Outcome) -> None:
        offset = 0
        callbacks: list[tuple[Callback, int]] = []
        for part in batch.parts:
            callbacks += self._intake.settle(part.page, part.start, part.stop, offset, outcome)
            offset += part.stop - part.start
        self._hand_over(callbacks, outcome, batch.held_bytes)
        if batch.followers:
            following = batch.followers.popleft()
            following.lanes, following.followers = batch.lanes, batch.followers
            if batch.gathering.is_ordered:
                following.timed_from = self._loop.time()
            self._queue(following, self._loop.time())
        else:
            self._intake.free(batch.lanes)

    def _fail_page(self, page: Page, outcome: Outcome) -> None:
        count = page.count - page.dropped_count
        assert outcome.error is not None, "it has failed"
        self._tally.events_failed += count
        self._teller.failed(outcome.channel, count, outcome.error)
        callbacks = self._intake.settle(page, page.dropped_count, page.count, 0, outcome)
        page.drop_content()
        self._hand_over(callbacks, outcome, page.held_bytes)

    def _hand_over(self, callbacks: list[tuple[Callback, int]], outcome: Outcome, held_bytes: int) -> None:
        """Has callbacks run; what they take of the buffer is given back behind them."""
        kept_bytes = min(len(callbacks) * CALLBACK_BYTES, held_bytes)
        self._intake.release(held_bytes - kept_bytes)
        if callbacks:
            self.run_callbacks(callbacks, outcome)
            self._callbacks.submit(
                lambda: self._intake.release(kept_bytes), is_success=outcome.error is None, is_counted=False
            )

    def run_callbacks(self, callbacks: list[tuple[Callback, int]], outcome: Outcome) -> None:
        """Has callbacks run, each with its event's result. Any thread may call it."""
        for callback, offset in callbacks:
            self._callbacks.submit(_told(callback, outcome, offset), is_success=outcome.error is None)

    def _tell_hooks(self, tell: Callable[[ProducerHooks], None]) -> None:
        hooks = self._settings.hooks
        if hooks is not None:
            self._callbacks.submit(lambda: tell(hooks), is_success=True, is_counted=False)

    def _note_drops(self, channel: str, event_count: int) -> None:
        self._tell_hooks(lambda hooks: hooks.events_dropped(channel, event_count))

    def _unsent_error(self, channel: str) -> MillraceError:
        """Why events could not be sent in all their time."""
        for server in self._servers:
            if not server.is_ready:
                return server.unreachable_error(channel)
            outlet = server.outlets.get(channel)
            # Where it is open what a server did, that is so of other events than these.
            if outlet is not None and outlet.last_error is not None and outlet.last_error.is_outcome_known:
                return outlet.last_error
        if not self._servers and self._naming_error is not None:
            message = f"cannot look up {', '.join(self._settings.endpoints)}: {self._naming_error}"
            return UnavailableError(message, channel=channel)
        return UnavailableError("the servers took nothing in all the time that the event had", channel=channel)

    def _closed_error(self) -> MillraceError:
        return ProducerClosedError("the producer was closed, and its time ran out before the event was stored")

    def _give_up(self, error: MillraceError) -> None:
        """Fails all that is not settled."""
        for server in self._servers:
            for outlet in server.outlets.values():
                inflight = list(outlet.inflight)
                outlet.inflight.clear()
                server.inflight_count -= len(inflight)
                outlet.end()
                for batch in inflight:
                    batch.doubted = outlet
                    self._give_up_batch(batch, error)
        retrying, self._retrying = self._retrying, []
        for batch in retrying:
            self._give_up_batch(batch, error)
        for gathering, page in self._intake.take_older(math.inf):
            self._given_up_count += page.count - page.dropped_count
            self._fail_page(page, Outcome(gathering.channel, error=error))

    def _give_up_batch(self, batch: Batch, error: MillraceError) -> None:
        followers, batch.followers = list(batch.followers), type(batch.followers)()
        for following in [batch, *followers]:
            self._given_up_count += following.count
            self._fail(following, error)


def _told(callback: Callback, outcome: Outcome, offset: int) -> Job:
    return lambda: callback(outcome.result(offset))


def _is_lane_of(outlets: Mapping[int, Outlet | None], outlet: Outlet, lane: Lane) -> bool:
    return outlets.get(lane.index) is outlet


def _any_lane(_lane: Lane) -> bool:
    return True
