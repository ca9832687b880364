package ipc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"mulligan/errs"
)

func TestReadJSON(t *testing.T) {
	tests := []struct {
		name, body string
		want       string // in the message; "" for success
	}{
		{"nothing", "", ""},
		{"blank", " \n", ""},
		{"an object", `{"notes":"n","pinned":true}`, ""},
		{"unknown field", `{"note":"n"}`, `"note"`},
		{"wrong type", `{"pinned":"yes"}`, "pinned: the value is a JSON string, and must be true or false"},
		{"wrong type, number", `{"notes":3}`, "notes: the value is a JSON number, and must be a string"},
		{"a list", `[]`, "a JSON array, not an object"},
		{"a string", `"x"`, "a JSON string, not an object"},
		{"trailing object", `{} {}`, "the body goes on after its JSON object"},
		{"trailing junk", `{}x`, "the body goes on after its JSON object"},
		{"cut", `{"notes":`, "ends too early"},
		{"not JSON", `notes=n`, "not JSON"},
		{"too large", `{"notes":"` + strings.Repeat("x", 2<<20) + `"}`, "larger than 1048576 bytes"},
		{"large junk", strings.Repeat("\x00", 2<<20), "larger than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var req CreateRequest
			err := ReadJSON(httptest.NewRequest("POST", "/", strings.NewReader(tt.body)), &req, 0)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestReadJSONNamesTypes(t *testing.T) {
	type all struct {
		I  int64             `json:"i"`
		F  float64           `json:"f"`
		L  []string          `json:"l"`
		M  map[string]string `json:"m"`
		In struct {
			D *struct{ X int } `json:"d"`
		} `json:"in"`
	}
	for body, want := range map[string]string{
		`{"i":1.5}`:           "i: the value is a JSON number 1.5, and must be a whole number",
		`{"f":"x"}`:           "f: the value is a JSON string, and must be a number",
		`{"l":{}}`:            "l: the value is a JSON object, and must be a list",
		`{"l":["a",1]}`:       "l: the value is a JSON number, and must be a string",
		`{"m":[]}`:            "m: the value is a JSON array, and must be an object",
		`{"in":{"d":"oops"}}`: "in.d: the value is a JSON string, and must be an object",
	} {
		var v all
		err := ReadJSON(httptest.NewRequest("POST", "/", strings.NewReader(body)), &v, 0)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// TestHugeBodyGetsAnAnswer writes 2 MB to a real server, which must be able to
// say what is wrong before the connection goes.
func TestHugeBodyGetsAnAnswer(t *testing.T) {
	d := newDaemon()
	d.on("POST /api/apps", func(_ http.ResponseWriter, r *http.Request) error {
		return ReadJSON(r, new(App), 0)
	})
	c := serve(t, d)
	conn, err := net.Dial("unix", c.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	junk := bytes.Repeat([]byte("junk"), 500_000)
	head := "POST /api/apps HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n"
	if _, err := conn.Write(append([]byte(head), junk...)); err != nil {
		t.Fatal(err) // it writes everything first, like the simplest of clients
	}
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400 ") || !strings.Contains(string(b), "larger than") {
		t.Errorf("%s, %v", b, err)
	}
}

func TestHandle(t *testing.T) {
	tests := []struct {
		name string
		f    func(http.ResponseWriter, *http.Request) error
		code int
		want ErrorBody
	}{
		{"an error", func(http.ResponseWriter, *http.Request) error {
			return errs.New(errs.Pinned, "delete", "cp-1 is pinned").WithHint("unpin it")
		}, 409, ErrorBody{errs.Pinned, "cp-1 is pinned", "delete", "unpin it"}},
		{"a plain error", func(http.ResponseWriter, *http.Request) error { return errors.New("oops") },
			500, ErrorBody{Kind: errs.Internal, Message: "oops"}},
		{"a panic", func(http.ResponseWriter, *http.Request) error { panic("oops") },
			500, ErrorBody{errs.Internal, "panic: oops", "GET /x", "see the daemon's log"}},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) error {
			WriteJSON(w, 200, make(chan int))
			return nil
		}, 500, ErrorBody{Kind: errs.Internal, Message: "json: unsupported type: chan int", Op: "write the answer"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := httptest.NewRecorder()
			Handle(tt.f).ServeHTTP(rec, httptest.NewRequest("GET", "/x", nil))
			var env errorEnvelope
			if err := json.Unmarshal(rec.Body.Bytes(), &env); err != nil {
				t.Fatal(err)
			}
			if rec.Code != tt.code || *env.Error != tt.want || rec.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%d %+v", rec.Code, *env.Error)
			}
		})
	}
}

// The contract's field names, no more and no fewer.
func TestFieldNames(t *testing.T) {
	checkpoint := `checkpoint_id app_id ref trigger vm_snapshot_id db_snapshot_id db_snapshots files_snapshot_id files_hash
		quiesced running healthy rehearsed pinned size_bytes notes deploy_id conversation_id message_id turn_id expires_at created_at`
	result := `rolled_back rolled_back_to restored_to safety_checkpoint stages changes_reverted changes_total verification
		recovered warnings next_actions confidence evidence_anchors assumptions next`
	tests := []struct {
		v    any
		want string
	}{
		{Checkpoint{}, checkpoint},
		{&Checkpoint{}, checkpoint},
		{DBSnapshot{}, "database snapshot_id driver position rehearsed"},
		{RollbackResult{}, result},
		{Stage{}, "stage status ts duration_ms notes"},
		{Change{}, "path operation summary"},
		{Verification{}, "pre_state_hash post_state_hash checkpoint_hash match layers"},
		{CheckpointList{}, "checkpoints storage_usage"},
		{StorageUsage{}, "checkpoint_count pinned_count total_bytes keep_last daily_days"},
		{PruneResult{}, "deleted kept"},
		{VerifyResult{}, "checkpoint_id ok problems"},
		{errorEnvelope{&ErrorBody{}}, "error"},
		{ErrorBody{}, "kind message op hint"},
	}
	for _, tt := range tests {
		got := fields(t, tt.v)
		want := map[string]bool{}
		for _, name := range strings.Fields(tt.want) {
			want[name] = true
		}
		for name := range got {
			if !want[name] {
				t.Errorf("%T has %q, which the contract does not", tt.v, name)
			}
		}
		for name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("%T lacks %q", tt.v, name)
			}
		}
	}
}

// TestNoListIsNull encodes zero values: a slice or map without omitempty must
// be [] or {}.
func TestNoListIsNull(t *testing.T) {
	for _, v := range []any{
		Checkpoint{}, CheckpointList{}, RollbackResult{}, Verification{}, PruneResult{}, VerifyResult{},
		AppList{}, AuditList{}, Status{}, App{}, AppChange{}, RollbackRequest{}, Stage{},
	} {
		got := fields(t, v)
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			kind := f.Type.Kind()
			if raw, ok := got[name]; ok && (kind == reflect.Slice || kind == reflect.Map) && string(raw) == "null" {
				t.Errorf("%T.%s is null", v, name)
			}
		}
	}
	// And within each other.
	b, err := json.Marshal(RollbackResult{RolledBackTo: &Checkpoint{}, Verification: &Verification{}})
	if err != nil || !bytes.Contains(b, []byte(`"db_snapshots":[]`)) || !bytes.Contains(b, []byte(`"layers":{}`)) {
		t.Errorf("%s, %v", b, err)
	}
}

func fields(t *testing.T, v any) map[string]json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}
