package store

import (
	"testing"
	"time"

	"mulligan/ipc"
)

func TestConversations(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	put := func(id ipc.TurnID, conversation string) int64 {
		turn := Turn{Turn: ipc.Turn{ID: id, AppID: "app-1", ConversationID: conversation, EndedAt: &time.Time{}}}
		if err := s.PutTurn(ctx, &turn); err != nil {
			t.Fatal(err)
		}
		return turn.Seq
	}
	one := put("t1", "a")
	put("t2", "b")
	last := put("t3", "b")
	if turns, err := s.ConversationTurns(ctx, "app-1", "b"); err != nil || len(turns) != 2 || turns[0].ID != "t2" {
		t.Fatalf("%+v, %v", turns, err)
	}
	if p, err := s.Pointer(ctx, "app-1", "a"); err != nil || p != (Pointer{}) {
		t.Errorf("%+v, %v", p, err)
	}
	at := time.Unix(5, 6).UTC()
	for _, p := range []Pointer{{"m0", 0, at}, {"m1", one, at}} {
		for _, c := range []string{"a", "b"} {
			if err := s.PutPointer(ctx, "app-1", c, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if p, err := s.Pointer(ctx, "app-1", "a"); err != nil || p != (Pointer{"m1", one, at}) {
		t.Errorf("%+v, %v", p, err)
	}
	// a's turns are forgotten, and its pointer with them; b has others.
	if err := s.DropTurns(ctx, "app-1", last); err != nil {
		t.Fatal(err)
	}
	for c, want := range map[string]string{"a": "", "b": "m1"} {
		if p, err := s.Pointer(ctx, "app-1", c); err != nil || p.MessageID != want {
			t.Errorf("%s: %+v, %v", c, p, err)
		}
	}
}

func TestOwnWrites(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	first, err := s.BeginOwnWrites(ctx, "app-1", "j-1", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginOwnWrites(ctx, "app-1", "j-5", time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.EndOwnWrites(ctx, "app-1", first, "j-2"); err != nil {
		t.Fatal(err)
	}
	list := func() (marks string) {
		own, err := s.OwnWrites(ctx, "app-1")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range own {
			marks += string(o.Start) + "…" + string(o.End) + " "
		}
		return marks
	}
	if got := list(); got != "j-1…j-2 j-5… " {
		t.Error(got)
	}
	if err := s.DropOwnWrites(ctx, "app-1", time.Unix(9, 0)); err != nil || list() != "j-5… " {
		t.Errorf("%s, %v", list(), err) // what goes on stays
	}
	if err := s.EndOwnWrites(ctx, "app-1", 0, "j-7"); err != nil || list() != "j-5…j-7 " {
		t.Errorf("%s, %v", list(), err) // as the next daemon does
	}
}
