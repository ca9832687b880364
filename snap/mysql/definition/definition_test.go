package definition

import "testing"

// The name of a character set before a collation is left out of MySQL's definitions, and nothing else is.
func TestCollated(t *testing.T) {
	for create, want := range map[string]string{
		"`a` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,\n `b` text COLLATE latin1_bin": "`a` text COLLATE utf8mb4_bin,\n `b` text COLLATE latin1_bin",
		"`a` text CHARACTER SET latin1,":                          "`a` text CHARACTER SET latin1,",
		"`a` text DEFAULT 'it''s \\\\' CHARACTER SET x COLLATE y": "`a` text DEFAULT 'it''s \\\\' COLLATE y",
		`COMMENT 'x\' CHARACTER SET a COLLATE b'`:                 `COMMENT 'x\' CHARACTER SET a COLLATE b'`,
		"`odd CHARACTER SET a COLLATE b`":                         "`odd CHARACTER SET a COLLATE b`",
		" CHARACTER SET ":                                         " CHARACTER SET ",
	} {
		if got := Collated(create); got != want {
			t.Errorf("%q: got %q, want %q", create, got, want)
		}
	}
}

// TestTrigger: what a trigger's definition calls the database by is taken out of its head, and of nothing else.
func TestTrigger(t *testing.T) {
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
		got, ok := Trigger([]byte(create))
		if again, _ := Trigger(got); !ok || string(got) != want || string(again) != want {
			t.Errorf("%q became\n%q, want\n%q", create, got, want)
		}
	}
	if _, ok := Trigger([]byte("CREATE TRIGGER shop.`t BEFORE INSERT ON shop.o FOR EACH ROW SET @a = 1")); ok {
		t.Error("a head that is no trigger's is understood")
	}
}

// TestEnding: what becomes of an event is read from its schedule, and not from its name or what it does.
func TestEnding(t *testing.T) {
	for create, want := range map[string][2]string{
		"`e` ON SCHEDULE EVERY 1 DAY STARTS '2020-01-01 00:00:00' ON COMPLETION NOT PRESERVE ENABLE DO SELECT ' ENDS ''2020-01-02'' ON COMPLETION NOT PRESERVE'": {"", "same"},
		"`e` ON SCHEDULE EVERY 1 DAY STARTS '2020-01-01 00:00:00' ENDS '2020-01-02 00:00:00' ON COMPLETION NOT PRESERVE ENABLE DO SELECT 1":                      {"2020-01-02 00:00:00", ""},
		"`e` ON SCHEDULE EVERY '1:30' HOUR_MINUTE ENDS '2020-01-02 00:00:00' ON COMPLETION NOT PRESERVE DISABLE DO SELECT 1":                                     {"2020-01-02 00:00:00", ""},
		"`AT '1' ON COMPLETION` ON SCHEDULE AT '2020-01-02 00:00:00' ON COMPLETION PRESERVE ENABLE COMMENT 'x' DO SELECT 1": {"2020-01-02 00:00:00",
			"`AT '1' ON COMPLETION` ON SCHEDULE AT '2020-01-02 00:00:00' ON COMPLETION PRESERVE DISABLE COMMENT 'x' DO SELECT 1"},
		"\"e\"\"\" ON SCHEDULE AT '2020-01-02 00:00:00' ON COMPLETION PRESERVE DISABLE ON SLAVE DO SELECT 1": {"2020-01-02 00:00:00", "same"},
	} {
		const head = "CREATE DEFINER=`root`@`%` EVENT "
		last, then := Ending([]byte(head + create))
		if want[1] == "same" {
			want[1] = create
		}
		if want[1] != "" {
			want[1] = head + want[1]
		}
		if last != want[0] || string(then) != want[1] {
			t.Errorf("%s ends %q, and becomes %q", create, last, then)
		}
	}
}
