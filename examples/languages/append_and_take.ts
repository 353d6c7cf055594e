// Appends an event, and takes it in a transaction. Run with the repository's protos:
//   npm ci && npx tsc
//   node append_and_take.js 127.0.0.1:7070 orders protos third_party/googleapis
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

const [address, channel, ...includeDirs] = process.argv.slice(2);
const definition = loader.loadSync("millrace/v1/channel_service.proto", { includeDirs, longs: Number, arrays: true });
const { ChannelService } = (grpc.loadPackageDefinition(definition) as any).millrace.v1;
const service = new ChannelService(address, grpc.credentials.createInsecure());

// Every call is safe to retry: wait for the server, and repeat calls that failed with UNAVAILABLE.
function call(method: string, request: object): Promise<any> {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 20_000;
    const attempt = () =>
      service[method](request, { deadline }, (error: grpc.ServiceError | null, response: any) => {
        if (error?.code === grpc.status.UNAVAILABLE && Date.now() < deadline) setTimeout(attempt, 100);
        else if (error) reject(error);
        else resolve(response);
      });
    attempt();
  });
}

// The stamp makes a repeat of this append, by this or a later run, store nothing twice.
const stamp = { producerId: "typescript", firstSequence: 1, lastSequence: 1 };
const events = [{ headers: { language: "TypeScript" }, body: Buffer.from("hello") }];
const appended = await call("Append", { channel, events, stamp });
console.log(appended.deduplicated ? "was there already" : `stored as ${appended.firstSequence}`);

const { txnId } = await call("BeginTxn", { channel });
const { batches } = await call("Take", { txnId, maxEvents: 10, wait: { seconds: 5 } });
for (const batch of batches)
  for (const event of batch.events) console.log(event.headers.language, event.body.toString());
await call("Commit", { txnIds: [txnId] });
service.close();
