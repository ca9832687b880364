package ipc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"mulligan/errs"
)

func TestWordsOfProgress(t *testing.T) {
	for want, p := range map[string]Progress{
		"capturing db:shop, 5s":                                     {What: "capturing db:shop", ElapsedMS: 5000},
		"files read: 1,200":                                         {What: "files read", Unit: "files", Done: 1200, ElapsedMS: 500},
		"files read: 1,200 of 4,000":                                {What: "files read", Unit: "files", Done: 1200, Total: 4000, ElapsedMS: 999},
		"files read: 1,200, 600 a second":                           {What: "files read", Unit: "files", Done: 1200, ElapsedMS: 2000},
		"files read: 4,100, 4,100 a second":                         {What: "files read", Unit: "files", Done: 4100, Total: 4000, ElapsedMS: 1000}, // more than were known
		"files read: 0 of 4,000":                                    {What: "files read", Unit: "files", Total: 4000, ElapsedMS: 2000},
		"disks read: 1.0 GiB of 4.0 GiB, 6s left, 512 MiB a second": {What: "disks read", Unit: "bytes", Done: 1 << 30, Total: 4 << 30, ElapsedMS: 2000},
		"files read: 3,999 of 4,000, 1s left, 3,999 a second":       {What: "files read", Unit: "files", Done: 3999, Total: 4000, ElapsedMS: 1000},
	} {
		if got := p.Words(); got != want {
			t.Errorf("%+v: %q, not %q", p, got, want)
		}
	}
}

// A client that shows progress gets the answer, or the error, whether the daemon tells progress or not.
func TestProgressOfRequest(t *testing.T) {
	stream := func(send func(*SSE)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !WantsSSE(r) {
				WriteJSON(w, http.StatusOK, Checkpoint{ID: "cp-plain"})
				return
			}
			sse, err := NewSSE(w, r)
			if err != nil {
				t.Error(err)
				return
			}
			defer sse.Close()
			send(sse)
		}
	}
	told := 0
	ctx := WithProgress(t.Context(), func(p Progress) { told += int(p.Done) })
	client := serve(t, stream(func(s *SSE) {
		s.Send(EventProgress, Progress{What: "files read", Done: 3})
		s.Send(EventProgress, Progress{What: "files read", Done: 4})
		s.Send(EventAnswer, Checkpoint{ID: "cp-1"})
	}))
	if cp, err := client.CreateCheckpoint(ctx, "shop", CreateRequest{}); err != nil || cp.ID != "cp-1" || told != 7 {
		t.Errorf("%+v %v, told %d", cp, err, told)
	}
	if cp, err := client.CreateCheckpoint(t.Context(), "shop", CreateRequest{}); err != nil || cp.ID != "cp-plain" {
		t.Errorf("without progress: %+v %v", cp, err)
	}
	if err := client.DropFork(ctx, "shop", "one"); err != nil {
		t.Errorf("an answer that nobody decodes: %v", err)
	}
	client = serve(t, stream(func(s *SSE) { s.Fail(errs.New(errs.Busy, "create", "someone works on it")) }))
	if _, err := client.CreateCheckpoint(ctx, "shop", CreateRequest{}); errs.KindOf(err) != errs.Busy {
		t.Errorf("refused: %v", err)
	}
	client = serve(t, stream(func(s *SSE) { s.Send(EventProgress, Progress{}) }))
	if _, err := client.CreateCheckpoint(ctx, "shop", CreateRequest{}); errs.KindOf(err) != errs.Unavailable || errors.Is(err, context.Canceled) {
		t.Errorf("cut off: %v", err)
	}
}

// An answer that comes as an event may be as large as one that comes as JSON.
func TestProgressOfLargeAnswer(t *testing.T) {
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("a folder/with many more folders below it/file %06d", i))
	}
	stream := func(first string, progress any, last string, answer any) *Client {
		return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sse, err := NewSSE(w, r)
			if err != nil {
				t.Error(err)
				return
			}
			defer sse.Close()
			if err := sse.Send(first, progress); err != nil {
				t.Error(err)
			}
			_ = sse.Send(last, answer) // the client says whether it came
		}))
	}
	told := int64(0)
	ctx := WithProgress(t.Context(), func(p Progress) { told += p.Done })
	reverted, err := stream(EventProgress, Progress{What: "files restored", Done: 7}, EventAnswer, RevertResult{RestoredPaths: paths}).Revert(ctx, "shop", RevertRequest{})
	if err != nil || !slices.Equal(reverted.RestoredPaths, paths) || told != 7 {
		t.Errorf("a revert: %d paths, %v, told %d", len(reverted.RestoredPaths), err, told)
	}
	stages := 0
	rolled, err := stream(EventStage, Stage{Stage: StageVM}, EventResult, RollbackResult{Warnings: paths}).
		Rollback(t.Context(), "shop", "cp-1", RollbackRequest{}, func(Stage) { stages++ })
	if err != nil || !slices.Equal(rolled.Warnings, paths) || stages != 1 {
		t.Errorf("a rollback: %d warnings, %v, %d stages", len(rolled.Warnings), err, stages)
	}
}
