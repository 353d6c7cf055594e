"""ChannelService: the RPCs that store, take and read events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from millrace.tracing import TRACING
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.transactions import Transactions
from millrace_server.errors import BadArgumentError
from millrace_server.grpc_services.call import current_call
from millrace_server.grpc_services.messages import (
    Columns,
    duration_of,
    encode_batches,
    events_of,
    form_of,
    micros_of,
    nonempty_events_of,
    receipt_response,
    seconds_of,
    stamp_of,
    take_response,
    timestamp_of,
)
from millrace_server.grpc_services.rpc import Handler, MessageStream, Rpcs
from millrace_server.grpc_services.streams import AppendStreamCall, ConsumeCall
from millrace_server.grpc_services.traced_calls import note_commit

NAME = pb.DESCRIPTOR.services_by_name["ChannelService"].full_name
TXN_IDS_MAX = 1_000
"""Transactions of one Commit."""


class ChannelService:
    """Serves ChannelService from a registry of channels."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self._registry = registry

    def handlers(self, rpcs: Rpcs) -> dict[str, Handler]:
        return {
            "BeginTxn": rpcs.unary(pb.BeginTxnRequest, self._begin_txn),
            "Put": rpcs.unary_with_events(pb.PutRequest, self._put),
            "Take": rpcs.unary(pb.TakeRequest, self._take),
            "Commit": rpcs.unary(pb.CommitRequest, self._commit),
            "Rollback": rpcs.unary(pb.RollbackRequest, self._rollback),
            "RenewTxn": rpcs.unary(pb.RenewTxnRequest, self._renew_txn),
            "Append": rpcs.unary_with_events(pb.AppendRequest, self._append),
            "AppendStream": rpcs.stream(pb.AppendStreamRequest, self._append_stream),
            "Consume": rpcs.stream(pb.ConsumeRequest, self._consume),
            "Claim": rpcs.unary(pb.ClaimRequest, self._claim),
            "Read": rpcs.server_stream(pb.ReadRequest, self._read),
            "Acknowledge": rpcs.unary(pb.AcknowledgeRequest, self._acknowledge),
            "Release": rpcs.unary(pb.ReleaseRequest, self._release),
            "FindSequence": rpcs.unary(pb.FindSequenceRequest, self._find_sequence),
        }

    async def _begin_txn(self, request: pb.BeginTxnRequest) -> pb.BeginTxnResponse:
        txn_id = request.txn_id if request.HasField("txn_id") else None
        lease_seconds = seconds_of("lease", request.lease)
        transactions = self._registry.accepting(request.channel).transactions
        call = current_call()
        txn_id, lease_seconds = transactions.begin(txn_id, lease_seconds, call.origin, call.quota)
        return pb.BeginTxnResponse(txn_id=txn_id, lease=duration_of(lease_seconds))

    async def _put(self, request: pb.PutRequest, columns: Columns | None) -> pb.PutResponse:
        put_offset = request.put_offset if request.HasField("put_offset") else None
        transactions = self._find(request)
        return pb.PutResponse(put_count=transactions.put(request.txn_id, events_of(request, columns), put_offset))

    async def _take(self, request: pb.TakeRequest) -> bytes:
        form = form_of(columns=request.columns)
        limits = TakeLimits(events_max=request.max_events, body_bytes_max=request.max_bytes, form=form)
        wait_seconds = seconds_of("wait", request.wait) if request.HasField("wait") else None
        take_offset = request.take_offset if request.HasField("take_offset") else None
        transactions = self._find(request)
        self._registry.refuse_entrance(transactions.name)
        batches, take_count = await transactions.take(request.txn_id, limits, wait_seconds, take_offset)
        return take_response(batches, take_count, form)

    async def _commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        txn_ids = request.txn_ids[:]
        if not 0 < len(txn_ids) <= TXN_IDS_MAX:
            raise BadArgumentError(f"txn_ids: has {len(txn_ids)} ids; 1 to {TXN_IDS_MAX} are allowed")
        call = current_call()
        stamp = stamp_of(request, call.identity)
        transactions = self._registry.transactions.find_common(txn_ids, request.channel)
        receipt = await transactions.commit(txn_ids, stamp, call.recheck)
        if (spans := TRACING.spans) is not None:
            note_commit(spans.current(), transactions.name, receipt)
        return receipt_response(pb.CommitResponse, receipt)

    async def _rollback(self, request: pb.RollbackRequest) -> pb.RollbackResponse:
        self._find(request).rollback(request.txn_id)
        return pb.RollbackResponse()

    async def _renew_txn(self, request: pb.RenewTxnRequest) -> pb.RenewTxnResponse:
        return pb.RenewTxnResponse(lease=duration_of(self._find(request).renew(request.txn_id)))

    async def _append(self, request: pb.AppendRequest, columns: Columns | None) -> pb.AppendResponse:
        call = current_call()
        appends = self._registry.accepting(request.channel).appends
        receipt = await appends.append(
            nonempty_events_of(request, columns), stamp_of(request, call.identity), call.recheck
        )
        if (spans := TRACING.spans) is not None:
            note_commit(spans.current(), request.channel, receipt)
        return receipt_response(pb.AppendResponse, receipt)

    async def _append_stream(self, stream: MessageStream) -> None:
        await AppendStreamCall(self._registry, stream).run()

    async def _consume(self, stream: MessageStream) -> None:
        await ConsumeCall(self._registry, stream).run()

    async def _claim(self, request: pb.ClaimRequest) -> pb.ClaimResponse:
        lease_seconds = seconds_of("lease", request.lease)
        wait_seconds = seconds_of("wait", request.wait)
        epoch = _epoch_of(request)
        channel = self._registry.get(request.channel)
        if epoch is None:
            owner = current_call().identity
            claim = await channel.claim(request.reader_id, lease_seconds, takeover=request.takeover, owner=owner)
        elif request.takeover:
            raise BadArgumentError("epoch: renews a claim, and takeover begins one; set only one of them")
        else:
            claim = channel.renew_claim(request.reader_id, epoch, lease_seconds)
        await channel.wait_for_events(claim, request.after_sequence, wait_seconds)
        return pb.ClaimResponse(
            lease=duration_of(claim.lease.seconds),
            first_sequence=channel.first_sequence,
            next_sequence=channel.next_sequence,
            epoch=claim.epoch,
            channel_id=channel.channel_id,
        )

    async def _read(self, request: pb.ReadRequest) -> AsyncGenerator[bytes]:
        channel = self._registry.get(request.channel)
        form = form_of(columns=request.columns)
        reads = channel.claims.read(request.reader_id, _epoch_of(request), request.from_sequence, request.to_sequence)
        async with aclosing(reads) as batches:
            async for batch in batches:
                for part in channel.parts(batch, form):
                    yield encode_batches(pb.ReadResponse(), pb.ReadResponse.BATCH_FIELD_NUMBER, [part], form)

    async def _acknowledge(self, request: pb.AcknowledgeRequest) -> pb.AcknowledgeResponse:
        claims = self._registry.get(request.channel).claims
        first_sequence = await claims.acknowledge(request.reader_id, _epoch_of(request), request.through_sequence)
        return pb.AcknowledgeResponse(first_sequence=first_sequence)

    async def _release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        await self._registry.get(request.channel).claims.release(request.reader_id, _epoch_of(request))
        return pb.ReleaseResponse()

    async def _find_sequence(self, request: pb.FindSequenceRequest) -> pb.FindSequenceResponse:
        channel = self._registry.get(request.channel)
        if not request.HasField("time"):
            raise BadArgumentError("time: is missing; give the time to search from")
        sequence, commit_time = channel.first_since(micros_of("time", request.time))
        return pb.FindSequenceResponse(sequence=sequence, commit_time=timestamp_of(commit_time))

    def _find(self, request: pb.PutRequest | pb.TakeRequest | pb.RollbackRequest | pb.RenewTxnRequest) -> Transactions:
        return self._registry.transactions.find(request.txn_id, request.channel)


def _epoch_of(request: pb.ClaimRequest | pb.ReadRequest | pb.AcknowledgeRequest | pb.ReleaseRequest) -> int | None:
    return request.epoch if request.HasField("epoch") else None
