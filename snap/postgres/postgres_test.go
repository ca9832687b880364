package postgres

import (
	"testing"

	"mulligan/errs"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/physical"
)

func TestChoose(t *testing.T) {
	cluster := &physical.Config{}
	for _, tt := range []struct {
		mode    Mode
		cluster *physical.Config
		want    Mode
		kind    errs.Kind
	}{
		{Auto, nil, Logical, ""},
		{"", nil, Logical, ""},
		{Auto, cluster, Physical, ""},
		{Logical, cluster, Logical, ""},
		{Physical, cluster, Physical, ""},
		{Physical, nil, "", errs.Denied},
		{"magic", cluster, "", errs.Invalid},
	} {
		mode, why, err := choose(Config{Mode: tt.mode, Cluster: tt.cluster})
		if mode != tt.want || errs.KindOf(err) != tt.kind || (why == "") != (tt.kind != "") {
			t.Errorf("mode %q, cluster %t: %q because %q, %v", tt.mode, tt.cluster != nil, mode, why, err)
		}
	}
}

func TestNew(t *testing.T) {
	store, err := cas.Open(t.TempDir()+"/store", cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d, err := New(Config{App: "app-1", Name: "main", DSN: "postgres://a@localhost/x", StateDir: t.TempDir(), Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if p := d; p.Mode() != Logical || p.Why() == "" || !p.CapturesLive() {
		t.Errorf("%s because %q", p.Mode(), p.Why())
	}
}
