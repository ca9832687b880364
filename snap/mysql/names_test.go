package mysql

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// testQualifiedTriggers: triggers that were created with the name of the database are made for the tables beside the live ones, and never live
// by a preparation. They come back, also from a checkpoint that has them as they were typed.
func testQualifiedTriggers(t *testing.T) {
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
	db := open(s.socket(), s.db)
	db.SetMaxOpenConns(1)
	for _, q := range []string{"SET NAMES sjis", "CREATE TRIGGER " + s.db + ".`\x83`` AFTER INSERT ON " + s.db + ".loose FOR EACH ROW BEGIN END"} { // the name is one letter, and its head is not understood
		_, err := db.Exec(q)
		check(t, err)
	}
	check(t, db.Close())
	all := "SELECT GROUP_CONCAT(trigger_name, event_object_table, action_statement ORDER BY 1) FROM information_schema.triggers WHERE trigger_schema = '" + s.db + "'"
	had := s.sql(t, "", all)
	check(t, s.capture("db-target"))
	check(t, s.capture("db-older"))
	s.typedAs(t, "db-older", typed)
	if list, err := s.driver.Diff(t.Context(), "db-older", "", nil); err != nil || len(list) > 0 {
		t.Errorf("%v is new since an older checkpoint, %v", list, err)
	}
	s.restore(t, "db-target") // nothing has changed
	s.sql(t, s.db, "DROP TRIGGER `both`; DROP TRIGGER third; DROP TRIGGER チ; DELETE FROM parent WHERE id = 77")
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

// testNamedDatabase: tables and views whose definitions have the database's name are made beside the live ones when what they refer to is no
// longer live, and Commit gives them their own definitions, also one that goes on after a crash.
func testNamedDatabase(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	create := "CREATE TABLE other_DB.x (a INT); CREATE TABLE counted (a INT); CREATE VIEW across AS SELECT c.a, x.a AS b FROM counted c, other_DB.x; " +
		"CREATE VIEW above AS SELECT a FROM across; CREATE VIEW called AS SELECT DB.twice(2); CREATE VIEW beside AS SELECT DB.id, x.a FROM parent DB, other_DB.x; " +
		"CREATE VIEW atop AS SELECT id FROM beside AS DB"
	wrecks := []string{"DROP DATABASE DB", "DROP VIEW across; DROP VIEW above; DROP VIEW beside; DROP VIEW atop; DROP VIEW called; DROP VIEW calls; DROP FUNCTION twice"}
	if !oracle {
		create += "; CREATE SEQUENCE `b``y` INCREMENT BY 10; ALTER TABLE counted ADD `it's` INT, ADD id BIGINT NOT NULL DEFAULT NEXTVAL(numbers) COMMENT 'nextval(`DB`.`numbers`)' PRIMARY KEY, " +
			"ADD n INT INVISIBLE DEFAULT (1 + NEXTVAL(`b``y`)) CHECK (n > 0), COMMENT 'it''s nextval(`DB`.`numbers`)'; INSERT INTO counted (a) VALUES (1), (2)"
		wrecks[1] += "; DROP SEQUENCE numbers; CREATE TABLE numbers (a INT)"
	}
	s.sql(t, s.db, strings.ReplaceAll("CREATE DATABASE other_DB; "+create, "DB", s.db))
	t.Cleanup(func() { s.sql(t, "", "DROP DATABASE other_"+s.db) })
	check(t, s.capture("db-target"))
	target := s.dump(t, s.db)
	for _, wreck := range wrecks {
		t.Run(wreck, func(t *testing.T) {
			s.sql(t, "", "USE "+s.db+"; "+strings.ReplaceAll(wreck, "DB", s.db))
			check(t, s.capture("db-base"))
			base := s.dump(t, s.db)
			check(t, s.driver.Rehearse(t.Context(), "rehearse-names", "db-target"))
			sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-names", Target: "db-target", Base: "db-base"})
			check(t, err)
			if s.dump(t, s.db) != base {
				t.Fatal("the preparation changed the live database")
			}
			died := errors.New("the daemon died")
			s.driver.cfg.Failpoint = func(step string) error {
				if step == "exchanged" {
					return died
				}
				return nil
			}
			if err := sw.Commit(t.Context()); !errors.Is(err, died) {
				t.Fatalf("the first Commit was to die: %v", err)
			}
			s.driver.cfg.Failpoint = nil
			check(t, sw.Commit(t.Context()))
			s.proves(t, sw)
			if s.dump(t, s.db) != target {
				t.Error("Commit did not get to the target")
			}
			check(t, sw.Undo(t.Context()))
			s.proves(t, sw)
			if s.dump(t, s.db) != base {
				t.Error("Undo did not get to the base")
			}
			check(t, sw.Finish(t.Context()))
			s.restore(t, "db-target")
			if s.dump(t, s.db) != target {
				t.Error("another restore did not get to the target")
			}
			s.restore(t, "db-base")
			if s.dump(t, s.db) != base {
				t.Error("another restore did not get to the base")
			}
			s.restore(t, "db-target")
		})
	}
	s.sql(t, "", "RENAME TABLE other_"+s.db+".x TO other_"+s.db+".y")
	err := s.driver.Rehearse(t.Context(), "rehearse-names", "db-target")
	if refuses(t, err, errs.Failed); !strings.Contains(fmt.Sprint(err), "view above cannot be made") {
		t.Errorf("without the table of another database: %v", err)
	}
	if oracle {
		return
	}
	s.sql(t, s.db, "DROP SEQUENCE numbers; RENAME TABLE other_"+s.db+".y TO other_"+s.db+".x")
	check(t, s.capture("db-target"))
	s.sql(t, s.db, "DROP DATABASE "+s.db)
	check(t, s.capture("db-base"))
	refuses(t, fate{Do: "prepare"}.run(s.driver), errs.Unsupported)
}
