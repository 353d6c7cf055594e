// Appends an event, and takes it in a transaction. docs/other_languages.md says how to generate the code and run it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "millrace/v1"
)

// Every call is safe to retry: gRPC repeats calls that failed with UNAVAILABLE.
const retries = `{"methodConfig": [{"name": [{"service": "millrace.v1.ChannelService"}], "waitForReady": true,
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

func main() {
	address, channel := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	connection, err := grpc.Dial(address, grpc.WithInsecure(), grpc.WithDefaultServiceConfig(retries))
	check(err)
	defer connection.Close()
	service := pb.NewChannelServiceClient(connection)

	// The stamp makes a repeat of this append, by this or a later run, store nothing twice.
	appended, err := service.Append(ctx, &pb.AppendRequest{
		Channel: channel,
		Events:  []*pb.Event{{Headers: map[string]string{"language": "Go"}, Body: []byte("hello")}},
		Stamp:   &pb.ProducerStamp{ProducerId: "go", FirstSequence: 1, LastSequence: 1},
	})
	check(err)
	if appended.Deduplicated {
		fmt.Println("was there already")
	} else {
		fmt.Println("stored as", appended.FirstSequence)
	}

	begun, err := service.BeginTxn(ctx, &pb.BeginTxnRequest{Channel: channel})
	check(err)
	wait := durationpb.New(5 * time.Second)
	taken, err := service.Take(ctx, &pb.TakeRequest{TxnId: begun.TxnId, MaxEvents: 10, Wait: wait})
	check(err)
	for _, batch := range taken.Batches {
		for _, event := range batch.Events {
			fmt.Println(event.Headers["language"], string(event.Body))
		}
	}
	_, err = service.Commit(ctx, &pb.CommitRequest{TxnIds: []string{begun.TxnId}})
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
