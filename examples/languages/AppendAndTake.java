// Appends an event, and takes it in a transaction. docs/other_languages.md says how to generate the code and run it.

import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.concurrent.TimeUnit;
import millrace.v1.ChannelServiceGrpc;
import millrace.v1.ChannelServiceOuterClass.*;
import millrace.v1.EventOuterClass.*;

public class AppendAndTake {
    public static void main(String[] arguments) throws InterruptedException {
        String address = arguments[0], name = arguments[1];
        // Every call is safe to retry: gRPC repeats calls that failed with UNAVAILABLE.
        ManagedChannel connection = ManagedChannelBuilder.forTarget(address).usePlaintext().enableRetry().build();
        var service = ChannelServiceGrpc.newBlockingStub(connection)
            .withWaitForReady().withDeadlineAfter(20, TimeUnit.SECONDS);

        // The stamp makes a repeat of this append, by this or a later run, store nothing twice.
        var stamp = ProducerStamp.newBuilder().setProducerId("java").setFirstSequence(1).setLastSequence(1);
        var event = Event.newBuilder().putHeaders("language", "Java").setBody(ByteString.copyFromUtf8("hello"));
        var appended = service.append(
            AppendRequest.newBuilder().setChannel(name).addEvents(event).setStamp(stamp).build());
        System.out.println(
            appended.getDeduplicated() ? "was there already" : "stored as " + appended.getFirstSequence());

        String txnId = service.beginTxn(BeginTxnRequest.newBuilder().setChannel(name).build()).getTxnId();
        var wait = Duration.newBuilder().setSeconds(5);
        var taken = service.take(TakeRequest.newBuilder().setTxnId(txnId).setMaxEvents(10).setWait(wait).build());
        for (EventBatch batch : taken.getBatchesList())
            for (Event one : batch.getEventsList())
                System.out.println(one.getHeadersOrThrow("language") + " " + one.getBody().toStringUtf8());
        service.commit(CommitRequest.newBuilder().addTxnIds(txnId).build());
        connection.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
}
