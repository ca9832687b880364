package mysql

import (
	"encoding/json"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/cas"
)

// TestTriggerHead: what a trigger's definition calls the database by is taken out of its head, and of nothing else.
func TestTriggerHead(t *testing.T) {
	for create, want := range map[string]string{
		"CREATE DEFINER=`root`@`localhost` TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET @a = shop.f()":                  "",
		"CREATE DEFINER=`a.b`@`10.%` trigger shop.t before insert on orders for each row set @a = shop.f()":                   "CREATE DEFINER=`a.b`@`10.%` trigger `t` before insert on orders for each row set @a = shop.f()",
		"CREATE DEFINER=`role` TRIGGER `shop`.`on`AFTER DELETE ON`shop`.`a``.b`FOR EACH ROW BEGIN END":                        "CREATE DEFINER=`role` TRIGGER `on`AFTER DELETE ON`a``.b`FOR EACH ROW BEGIN END",
		"CREATE DEFINER=\"r\"@\"h\" TRIGGER \"shop\" . \"t 1\" AFTER UPDATE ON shop.\"o\" FOR EACH ROW BEGIN END":             "CREATE DEFINER=\"r\"@\"h\" TRIGGER \"t 1\" AFTER UPDATE ON \"o\" FOR EACH ROW BEGIN END",
		"CREATE TRIGGER IF NOT EXISTS shop.1t AFTER INSERT ON .orders FOR EACH ROW BEGIN END":                                 "CREATE TRIGGER `1t` AFTER INSERT ON `orders` FOR EACH ROW BEGIN END",
		"CREATE TRIGGER if BEFORE INSERT ON shop.on FOR EACH ROW BEGIN END":                                                   "CREATE TRIGGER if BEFORE INSERT ON `on` FOR EACH ROW BEGIN END",
		"CREATE TRIGGER shop./* x.y ON */t -- on z.z\nBEFORE # on a.b\nINSERT--\nON  shop /**/ . o/**/FOR EACH ROW BEGIN END": "CREATE TRIGGER `t` -- on z.z\nBEFORE # on a.b\nINSERT--\nON  `o`/**/FOR EACH ROW BEGIN END",
		"CREATE TRIGGER shop.\xfct BEFORE INSERT ON shop.`\xe9.\xe9` FOR EACH ROW SET @a = '\xe9'":                            "CREATE TRIGGER `\xfct` BEFORE INSERT ON `\xe9.\xe9` FOR EACH ROW SET @a = '\xe9'",
		"CREATE TRIGGER shop.t AFTER INSERT OR UPDATE OF a, `on` ON shop.o FOR EACH ROW BEGIN END":                            "CREATE TRIGGER `t` AFTER INSERT OR UPDATE OF a, `on` ON `o` FOR EACH ROW BEGIN END",
	} {
		if want == "" {
			want = create
		}
		o := object{Kind: "TRIGGER", Create: []byte(create)}
		if o.unqualify(); string(o.Create) != want || !triggerHead.Match(o.Create) {
			t.Errorf("%q became\n%q, want\n%q", create, o.Create, want)
		}
	}
}

// TestQualifiedTriggers: triggers that were created with the name of the database are made for the tables beside the live ones, and never live
// by a preparation. They come back, also from a checkpoint that has them as they were typed.
func TestQualifiedTriggers(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	typed := []string{
		"TRIGGER DB.named BEFORE UPDATE ON loose FOR EACH ROW SET NEW.b = 'named'",
		"TRIGGER DB.both AFTER UPDATE ON DB.loose FOR EACH ROW INSERT INTO DB.parent VALUES (77, 'DB.both')",
		"TRIGGER `DB` . `third` BEFORE DELETE ON\n`DB` . `loose` FOR EACH ROW BEGIN END",
	}
	for i, q := range typed {
		typed[i] = strings.ReplaceAll(q, "DB", s.db)
		s.sql(t, s.db, "DELIMITER //\nCREATE "+typed[i]+"//")
	}
	all := "SELECT GROUP_CONCAT(trigger_name, event_object_table, action_statement ORDER BY 1) FROM information_schema.triggers WHERE trigger_schema = '" + s.db + "'"
	had := s.sql(t, "", all)
	check(t, s.capture("db-target"))
	check(t, s.capture("db-older"))
	s.typedAs(t, "db-older", typed)
	if list, err := s.driver.Diff(t.Context(), "db-older", "", nil); err != nil || len(list) > 0 {
		t.Errorf("%v is new since an older checkpoint, %v", list, err)
	}
	s.restore(t, "db-target") // nothing has changed
	s.sql(t, s.db, "DROP TRIGGER `both`; DROP TRIGGER third; DELETE FROM parent WHERE id = 77")
	for _, target := range []snap.SnapshotID{"db-target", "db-older"} {
		check(t, s.capture("db-base"))
		base := s.dump(t, s.db)
		sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-triggers", Target: target, Base: "db-base"})
		check(t, err)
		if s.dump(t, s.db) != base {
			t.Fatal("the preparation changed the live database")
		}
		check(t, s.driver.Rehearse(t.Context(), "rehearse-triggers", target))
		if s.dump(t, s.db) != base {
			t.Fatal("the rehearsal changed the live database")
		}
		check(t, sw.Commit(t.Context()))
		s.proves(t, sw)
		if now := s.sql(t, "", all); now != had {
			t.Errorf("the triggers were %s\nare %s", had, now)
		}
		check(t, sw.Undo(t.Context()))
		s.proves(t, sw)
		check(t, sw.Finish(t.Context()))
	}
	check(t, s.capture("db-safety"))
	s.sql(t, s.db, "DROP TRIGGER named")
	s.restore(t, "db-safety")
	s.restore(t, "db-older") // the base is as this version reads it
	s.typedAs(t, "db-safety", typed)
	s.restore(t, "db-safety")
}

// proves checks that the proof of a switch matches, and returns its notes.
func (s *subject) proves(t *testing.T, sw snap.Switch) string {
	t.Helper()
	p, err := sw.Check(t.Context())
	check(t, err)
	if !p.Match {
		t.Errorf("the proof does not match: %+v", p)
	}
	return strings.Join(p.Notes, "\n")
}

// typedAs gives a snapshot the triggers as they were typed, as earlier versions captured them.
func (s *subject) typedAs(t *testing.T, id snap.SnapshotID, typed []string) {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	st, err := s.driver.load(root)
	check(t, err)
	changed := 0
	for i := range st.Objects {
		for _, q := range typed {
			if o := &st.Objects[i]; o.Kind == "TRIGGER" && strings.Contains(q, o.Name) {
				head, _, _ := strings.Cut(string(o.Create), "TRIGGER")
				o.Create = []byte(head + q)
				changed++
			}
		}
	}
	if changed == 0 {
		t.Fatal("no trigger was typed so")
	}
	data, err := json.Marshal(st.state)
	check(t, err)
	b := s.cfg.Store.Begin()
	defer b.Discard()
	node, err := b.Node(data, st.rows)
	check(t, err)
	about, err := json.Marshal(meta{st.state.hash().String()})
	check(t, err)
	check(t, b.Commit(cas.Root{Name: root.Name, Hash: node, Meta: about}))
	s.reopen(t) // it knew what the newest snapshot has
}
