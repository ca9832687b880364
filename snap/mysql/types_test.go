package mysql

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// column types with values at both ends of their ranges, and those that are easily lost between.
var types = []struct{ kind, values string }{
	{"TINYINT", "-128|0|127"}, {"TINYINT UNSIGNED", "0|255"}, {"SMALLINT", "-32768|32767"}, {"SMALLINT UNSIGNED", "0|65535"},
	{"MEDIUMINT", "-8388608|8388607"}, {"MEDIUMINT UNSIGNED", "0|16777215"}, {"INT", "-2147483648|2147483647"}, {"INT(7) UNSIGNED ZEROFILL", "0|4294967295"},
	{"BIGINT", "-9223372036854775808|9223372036854775807"}, {"BIGINT UNSIGNED", "0|18446744073709551615"}, {"BIGINT ZEROFILL", "7"}, {"BOOL", "0|1|-128"},
	{"DECIMAL(65,30)", "-99999999999999999999999999999999999.999999999999999999999999999999|0.000000000000000000000000000001|99999999999999999999999999999999999.999999999999999999999999999999"},
	{"DECIMAL(65,0)", "-99999999999999999999999999999999999999999999999999999999999999999|99999999999999999999999999999999999999999999999999999999999999999"},
	{"DECIMAL(5,2) UNSIGNED ZEROFILL", "0.1|999.99"}, {"DECIMAL(30,30)", "-0.999999999999999999999999999999"},
	{"FLOAT", "-3.4028234663852886e38|-1.401298464324817e-45|1.1754943508222875e-38|3.4028234663852886e38|16777215|0.1|-0e0"}, {"FLOAT(7,3)", "-9999.999|9999.999|0.001"}, {"FLOAT UNSIGNED ZEROFILL", "0.5|3.4028234663852886e38"},
	{"DOUBLE", "-1.7976931348623157e308|5e-324|2.2250738585072014e-308|1.7976931348623157e308|0.1|-0e0|9007199254740993"}, {"DOUBLE(10,3)", "-9999999.999|0.001"}, {"DOUBLE ZEROFILL", "1.5"},
	{"BIT(1)", "b'0'|b'1'"}, {"BIT(64)", "b'0'|0xFFFFFFFFFFFFFFFF|0x0001000200030027"}, {"BIT(13)", "b'1010101010101'"},
	{"DATE", "'0000-00-00'|'0000-01-01'|'2020-00-00'|'2020-02-00'|'0001-01-01'|'9999-12-31'"},
	{"DATE NOT NULL DEFAULT '0000-00-00'", "'0000-00-00'|DEFAULT"},
	{"DATETIME", "'0000-00-00 00:00:00'|'1000-01-01 00:00:00'|'2021-00-01 01:02:03'|'9999-12-31 23:59:59'"}, {"DATETIME(6)", "'0000-00-00 00:00:00.000001'|'9999-12-31 23:59:59.999999'"},
	{"TIMESTAMP NULL", "'0000-00-00 00:00:00'|'1970-01-01 00:00:01'|'2038-01-19 03:14:07'|'2021-03-28 02:30:00'"}, {"TIMESTAMP(6) NULL", "'1970-01-01 00:00:00.000001'|'2038-01-19 03:14:07.999999'"},
	{"TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "'2001-02-03 04:05:06'|'0000-00-00 00:00:00'"},
	{"TIME", "'-838:59:59'|'00:00:00'|'838:59:59'"}, {"TIME(6)", "'-838:59:59.999999'|'-00:00:00.000001'|'838:59:59.999999'"}, {"YEAR", "0|1901|1970|2000|2155"}, {"YEAR NOT NULL DEFAULT 0", "0|DEFAULT"},
	{"CHAR(0)", "''|NULL"}, {"CHAR(255)", "REPEAT('ü', 255)|'trailing   '|''|'\\0'"}, {"VARCHAR(0)", "''"}, {"VARCHAR(300)", "'trailing   '|CONCAT('\\'', '\"', '\\\\', '\\n', '\\r', '\\Z', '\\0')|'😀'"},
	{"BINARY(255)", "''|X'00FF00'|REPEAT(X'FF', 255)"}, {"VARBINARY(2000)", "''|X'00'|X'0000'|X'5C27220A0D1A00FF'"}, {"BINARY(0)", "''"},
	{"TINYTEXT", "''|REPEAT('x', 255)"}, {"TEXT", "REPEAT('x', 65535)"}, {"MEDIUMTEXT", "REPEAT('ü', 70000)"}, {"LONGTEXT", "REPEAT('x', 400000)|''"}, {"TINYBLOB", "REPEAT(X'00', 255)"}, {"BLOB", "REPEAT(X'27', 65535)"}, {"LONGBLOB", "REPEAT(X'5C', 400000)|''"},
	{"VARCHAR(20) CHARACTER SET latin1", "'café ÿ€'"}, {"VARCHAR(20) CHARACTER SET ucs2", "'日本'"}, {"CHAR(20) CHARACTER SET utf16", "'😀日'"}, {"CHAR(20) CHARACTER SET utf32", "'😀'"}, {"TEXT CHARACTER SET sjis", "'表ソ'|X'835C'"},
	{"TEXT CHARACTER SET gbk", "X'BF5C'|X'BF27'|'誠'"}, {"TEXT CHARACTER SET big5", "X'A45C'|'功'"}, {"TEXT CHARACTER SET cp932", "X'835C'|'①'"}, {"TEXT CHARACTER SET ujis", "'日'"}, {"TEXT CHARACTER SET utf8mb3 COLLATE utf8mb3_bin", "'ü'"},
	{"TEXT CHARACTER SET koi8r", "'привет'"}, {"TEXT CHARACTER SET ascii", "'plain'"}, {"ENUM('a','ä','日') CHARACTER SET utf16", "'日'"}, {"TEXT CHARACTER SET swe7", "'[]'"},
	{"ENUM('a','b''c','')", "'a'|'b\\'c'|''"}, {"ENUM('x','y')", "'not there'|1|2"}, {"SET('a','b','ü')", "''|'a,b,ü'"},
	{"SET(" + members(64) + ")", "1|0xFFFFFFFFFFFFFFFF|0x8000000000000000"},
	{"GEOMETRY", "NULL|ST_GeomFromText('POINT(-1e300 1e-300)')|ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))', 4326)"},
	{"POINT", "POINT(-180, 90)"}, {"LINESTRING", "ST_GeomFromText('LINESTRING(0 0,10 10)')"}, {"POLYGON", "ST_GeomFromText('POLYGON((0 0,10 0,10 10,0 0))')"}, {"MULTIPOINT", "ST_GeomFromText('MULTIPOINT(0 0,1 1)')"},
	{"MULTILINESTRING", "ST_GeomFromText('MULTILINESTRING((0 0,1 1),(2 2,3 3))')"}, {"MULTIPOLYGON", "ST_GeomFromText('MULTIPOLYGON(((0 0,10 0,10 10,0 0)))')"}, {"GEOMETRYCOLLECTION", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')"},
	{"JSON", "'{}'|'[1, 2.0, \"ü😀\", null]'|'  {\"b\": 1,  \"a\": 2, \"a\": 3}'"},
	{"INT GENERATED ALWAYS AS (id * 2) STORED", "DEFAULT"}, {"INT GENERATED ALWAYS AS (id + 2) VIRTUAL", "DEFAULT"}, {"VARCHAR(40) GENERATED ALWAYS AS (CONCAT('\\\\', id, '''ü')) STORED", "DEFAULT"},
	{"INT NOT NULL DEFAULT (1 + 2)", "DEFAULT|-1"}, {"VARCHAR(50) DEFAULT '\\'\\\\ü\\n'", "DEFAULT"},
}

// mariadbTypes are MariaDB's own.
var mariadbTypes = []struct{ kind, values string }{
	{"INET6", "'::'|'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'|'::ffff:1.2.3.4'"}, {"INET4", "'0.0.0.0'|'255.255.255.255'"}, {"UUID", "'00000000-0000-0000-0000-000000000000'|'ffffffff-ffff-ffff-ffff-ffffffffffff'|'123e4567-e89b-12d3-a456-426655440000'"},
	{"INT INVISIBLE DEFAULT 3", "-5"}, {"VARCHAR(2000) COMPRESSED", "REPEAT('ü', 900)|''"}, {"BLOB COMPRESSED", "REPEAT(X'00', 60000)"}, {"INT CHECK (v > 0)", "1|-7"},
	{"INT DEFAULT NEXT VALUE FOR numbers", "DEFAULT|DEFAULT"}, {"POINT REF_SYSTEM_ID=4326", "ST_GeomFromText('POINT(1 2)', 4326)"}, {"YEAR(2)", "0|70"}, {"INT UNIQUE", "NULL|NULL|4"},
	{"VARCHAR(20) COLLATE utf8mb4_uca1400_ai_ci", "'ü'"}, {"LONGTEXT UNIQUE", "'a'|'b'"},
}

// mysqlTypes are MySQL's own.
var mysqlTypes = []struct{ kind, values string }{
	{"INT DEFAULT 3 INVISIBLE", "-5"}, {"INT CHECK (v > 0) NOT ENFORCED", "1|-7"}, {"POINT SRID 4326", "ST_GeomFromText('POINT(1 2)', 4326)"}, {"INT UNIQUE", "NULL|NULL|4"},
	{"VARCHAR(20) COLLATE utf8mb4_0900_as_ci", "'ü'"}, {"VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", "'ü'"}, {"JSON DEFAULT (JSON_ARRAY(1, 'x'))", "DEFAULT|'{\"a\": 1e100}'"},
	{"JSON", "JSON_OBJECT('d', CAST('2020-01-02 03:04:05.678901' AS DATETIME(6)), 'b', X'00ff')"},
	{"VARCHAR(60) DEFAULT (UUID())", "'x'"}, {"TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)", "'2001-02-03 04:05:06.000001'"}, {"VECTOR(3)", "STRING_TO_VECTOR('[1,-2.5,3e30]')|NULL"},
}

func members(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("'m%d'", i))
	}
	return strings.Join(list, ",")
}

// Every type of column goes back, and forward again, with values at both ends of its range, also what only a server that
// is not strict takes: with a key and without, alone and among others.
func testTypes(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	var sql strings.Builder
	own, odd := mariadbTypes, oddities
	sql.WriteString("SET sql_mode = '', time_zone = '+00:00';\n")
	if oracle {
		own, odd = mysqlTypes, mysqlOddities
	} else {
		sql.WriteString("SET check_constraint_checks = 0;\n")
	}
	for i, c := range slices.Concat(types, own) {
		for _, key := range []string{"id INT PRIMARY KEY", "id INT"} {
			table := fmt.Sprintf("t%d_%t", i, strings.Contains(key, "KEY"))
			fmt.Fprintf(&sql, "CREATE TABLE %s (%s, v %s);\n", table, key, c.kind)
			for n, v := range strings.Split(c.values, "|") {
				fmt.Fprintf(&sql, "INSERT INTO %s (id, v) VALUES (%d, %s);\n", table, n, v)
			}
			if strings.Contains(c.kind, "DEFAULT") || strings.Contains(c.kind, "NOT NULL") || strings.Contains(c.kind, "GENERATED") {
				continue
			}
			fmt.Fprintf(&sql, "INSERT IGNORE INTO %s (id, v) VALUES (100, NULL);\n", table)
		}
	}
	s.sql(t, s.db, sql.String())
	s.sql(t, s.db, odd)
	s.there(t)
}

// there goes to where the database has lost everything, back, and forward again.
func (s *subject) there(t *testing.T) {
	t.Helper()
	check(t, s.capture("db-full"))
	full := s.dump(t, s.db)
	for name := range strings.Lines(s.sql(t, s.db, "SELECT table_name FROM information_schema.tables WHERE table_schema = '"+s.db+"' AND table_type = 'BASE TABLE'") + "\n") {
		s.sql(t, s.db, "SET foreign_key_checks = 0; DELETE FROM `"+strings.ReplaceAll(strings.TrimSuffix(name, "\n"), "`", "``")+"`")
	}
	check(t, s.capture("db-empty"))
	empty := s.dump(t, s.db)
	s.restore(t, "db-full")
	if s.dump(t, s.db) != full {
		t.Error("it did not come back")
	}
	s.restore(t, "db-empty")
	if s.dump(t, s.db) != empty {
		t.Error("it did not go forward again")
	}
}

// oddities are what a session's settings can leave behind.
const oddities = `
	SET sql_mode = '', foreign_key_checks = 0, innodb_strict_mode = 0, check_constraint_checks = 0;
	CREATE TABLE o_auto (id INT AUTO_INCREMENT PRIMARY KEY, v INT); SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'; INSERT INTO o_auto VALUES (0, 1), (-5, 2), (2147483647, 3);
	SET sql_mode = '';
	CREATE TABLE o_checked (a INT, b INT, CHECK (a < b), CONSTRAINT named CHECK (b > 0)); INSERT INTO o_checked VALUES (5, -1);
	CREATE TABLE o_orphan (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id)); INSERT INTO o_orphan VALUES (1, 4711);
	CREATE TABLE o_format (a INT, b VARCHAR(100)) ROW_FORMAT = DYNAMIC KEY_BLOCK_SIZE = 8;
	CREATE TABLE o_prefix (b BLOB, PRIMARY KEY (b(3))); INSERT INTO o_prefix VALUES ('abcd'), ('abd'), (''), (X'00');
	CREATE TABLE o_desc (a INT, b VARCHAR(10), PRIMARY KEY (a DESC, b)); INSERT INTO o_desc VALUES (1, 'a'), (2, 'B'), (2, 'a');
	CREATE TABLE o_on_update (a INT PRIMARY KEY, t TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)); INSERT INTO o_on_update VALUES (1, '2000-01-01 00:00:00.123'), (2, NULL), (3, 0);
	SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE';
	CREATE TABLE o_ansi ("a" INT, "b" VARCHAR(20) DEFAULT 'back\slash', "c" VARCHAR(50) AS ("b" || '\n' || "a") STORED); INSERT INTO o_ansi (a) VALUES (1);
	CREATE TRIGGER o_pipes BEFORE INSERT ON o_ansi FOR EACH ROW SET NEW.b = 'x' || '\';
	SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'; CREATE TABLE o_pad (a CHAR(10), b VARCHAR(20)); INSERT INTO o_pad VALUES ('x', 'x ');
	SET sql_mode = 'ORACLE';
	DELIMITER //
	CREATE OR REPLACE PROCEDURE o_oracle (x IN INT) AS BEGIN SELECT x; END//
	DELIMITER ;
	SET sql_mode = 'MSSQL'; CREATE VIEW o_mssql AS SELECT a AS "an ""alias""" FROM o_desc;
	SET sql_mode = 'IGNORE_SPACE'; CREATE FUNCTION o_space() RETURNS INT DETERMINISTIC RETURN 1;
	SET sql_mode = '', time_zone = 'SYSTEM';
	CREATE TABLE o_period (id INT, f DATE, u DATE, PERIOD FOR p (f, u), UNIQUE (id, p WITHOUT OVERLAPS)); INSERT INTO o_period VALUES (1, '2000-01-01', '2001-01-01'), (1, '2001-01-01', '9999-12-31');
	CREATE TABLE o_ignored (a INT, b INT, KEY k (b) IGNORED); CREATE TABLE o_full (a TEXT, FULLTEXT KEY (a)); INSERT INTO o_full VALUES ('some words here');
	CREATE TABLE o_spatial (g POINT NOT NULL, SPATIAL KEY (g)); INSERT INTO o_spatial VALUES (POINT(1, 2));
`

// mysqlOddities are those of them that MySQL has, and its own.
const mysqlOddities = `
	SET sql_mode = '', foreign_key_checks = 0, innodb_strict_mode = 0;
	CREATE TABLE o_auto (id INT AUTO_INCREMENT PRIMARY KEY, v INT); SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'; INSERT INTO o_auto VALUES (0, 1), (-5, 2), (2147483647, 3);
	SET sql_mode = '';
	CREATE TABLE o_checked (a INT, b INT, CHECK (a < b) NOT ENFORCED, CONSTRAINT named CHECK (b > -5)); INSERT INTO o_checked VALUES (5, -1);
	CREATE TABLE o_orphan (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id)); INSERT INTO o_orphan VALUES (1, 4711);
	CREATE TABLE o_prefix (b BLOB, PRIMARY KEY (b(3))); INSERT INTO o_prefix VALUES ('abcd'), ('abd'), (''), (X'00');
	CREATE TABLE o_desc (a INT, b VARCHAR(10), PRIMARY KEY (a DESC, b)); INSERT INTO o_desc VALUES (1, 'a'), (2, 'B'), (2, 'a');
	CREATE TABLE o_on_update (a INT PRIMARY KEY, t TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)); INSERT INTO o_on_update VALUES (1, '2000-01-01 00:00:00.123'), (2, NULL), (3, 0);
	SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE';
	CREATE TABLE o_ansi ("a" INT, "b" VARCHAR(20) DEFAULT 'back\slash', "c" VARCHAR(50) AS ("b" || 'n' || "a") STORED); INSERT INTO o_ansi (a) VALUES (1);
	CREATE TRIGGER o_pipes BEFORE INSERT ON o_ansi FOR EACH ROW SET NEW.b = 'x' || '\';
	SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'; CREATE TABLE o_pad (a CHAR(10), b VARCHAR(20)); INSERT INTO o_pad VALUES ('x', 'x ');
	SET sql_mode = 'IGNORE_SPACE'; CREATE FUNCTION o_space() RETURNS INT DETERMINISTIC RETURN 1;
	SET sql_mode = '', time_zone = 'SYSTEM';
	CREATE TABLE o_hidden (a INT, b INT, KEY k (b) INVISIBLE, KEY f ((a + b))); CREATE TABLE o_full (a TEXT, FULLTEXT KEY (a)); INSERT INTO o_full VALUES ('some words here');
	CREATE TABLE o_spatial (g POINT NOT NULL SRID 0, SPATIAL KEY (g)); INSERT INTO o_spatial VALUES (POINT(1, 2));
	CREATE TABLE o_many (a INT, j JSON, KEY m ((CAST(j->'$[*]' AS UNSIGNED ARRAY)))); INSERT INTO o_many VALUES (1, '[1, 2]');
	SET sql_generate_invisible_primary_key = 1; CREATE TABLE o_keyless (a INT); INSERT INTO o_keyless VALUES (1), (1); SET sql_generate_invisible_primary_key = 0;
	CREATE VIEW o_check AS SELECT a FROM o_desc WHERE a > 0 WITH CASCADED CHECK OPTION;
`

// A film rental's database, in the manner of the well-known sample: keys in rings, geometry, full text, views, routines, triggers.
// And a firm's, with more rows, keys of two columns and views of views.
func TestSamples(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	s.sql(t, s.db, counted(samples))
	s.there(t)
	dir := os.Getenv("MULLIGAN_TEST_SAMPLES")
	if dir == "" {
		return
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	check(t, err)
	if len(files) == 0 {
		t.Fatalf("there is no .sql file in %s", dir)
	}
	s = newSubject(t, sharedServer(t))
	for _, name := range files {
		text, err := os.ReadFile(name)
		check(t, err)
		s.sql(t, s.db, elsewhere.ReplaceAllString(string(text), ""))
	}
	s.there(t)
}

// elsewhere matches the statements of a sample's script that choose a database of its own, or another file.
var elsewhere = regexp.MustCompile(`(?mi)^(drop|create) (schema|database)\b[^;]*;|^use [^;]*;|^source .*$`)

// counted has tables of numbers in place of those that MariaDB makes by their names (seq_1_to_9).
func counted(sql string) string {
	if !oracle {
		return sql
	}
	rows := func(n string) string {
		return "(WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < " + n + ") SELECT seq FROM s) "
	}
	named := regexp.MustCompile(`\bseq_1_to_(\d+)( [ey]\b)?`)
	return "SET cte_max_recursion_depth = 10000;" + named.ReplaceAllStringFunc(sql, func(name string) string {
		m := named.FindStringSubmatch(name)
		if m[2] == "" {
			m[2] = " n"
		}
		return strings.TrimSuffix(rows(m[1]), " ") + m[2]
	})
}

const samples = `
	SET foreign_key_checks = 0;
	CREATE TABLE language (language_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name CHAR(20) NOT NULL, last_update TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP);
	CREATE TABLE film (film_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(128) NOT NULL, description TEXT, release_year YEAR, language_id TINYINT UNSIGNED NOT NULL, original_language_id TINYINT UNSIGNED,
		rental_rate DECIMAL(4,2) NOT NULL DEFAULT 4.99, rating ENUM('G','PG','PG-13','R','NC-17') DEFAULT 'G', special_features SET('Trailers','Commentaries','Deleted Scenes','Behind the Scenes'), KEY (title),
		FOREIGN KEY (language_id) REFERENCES language (language_id) ON UPDATE CASCADE, FOREIGN KEY (original_language_id) REFERENCES language (language_id) ON DELETE RESTRICT ON UPDATE CASCADE);
	CREATE TABLE film_text (film_id SMALLINT UNSIGNED NOT NULL PRIMARY KEY, title VARCHAR(255) NOT NULL, description TEXT, FULLTEXT KEY title_description (title, description));
	CREATE TABLE address (address_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, address VARCHAR(50) NOT NULL, location GEOMETRY NOT NULL, SPATIAL KEY (location));
	CREATE TABLE staff (staff_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(45) NOT NULL, picture BLOB, store_id TINYINT UNSIGNED NOT NULL, active BOOLEAN NOT NULL DEFAULT TRUE, password VARCHAR(40) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin,
		CONSTRAINT fk_staff_store FOREIGN KEY (store_id) REFERENCES store (store_id) ON UPDATE CASCADE);
	CREATE TABLE store (store_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, manager TINYINT UNSIGNED NOT NULL, address_id SMALLINT UNSIGNED NOT NULL, UNIQUE KEY (manager),
		CONSTRAINT fk_store_staff FOREIGN KEY (manager) REFERENCES staff (staff_id) ON UPDATE CASCADE, FOREIGN KEY (address_id) REFERENCES address (address_id));
	CREATE TABLE rental (rental_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, film_id SMALLINT UNSIGNED, rental_date DATETIME NOT NULL, return_date DATETIME, UNIQUE KEY (rental_date, film_id), FOREIGN KEY (film_id) REFERENCES film (film_id) ON DELETE SET NULL);
	DELIMITER //
	CREATE TRIGGER ins_film AFTER INSERT ON film FOR EACH ROW BEGIN INSERT INTO film_text VALUES (NEW.film_id, NEW.title, NEW.description); END//
	CREATE TRIGGER upd_film AFTER UPDATE ON film FOR EACH ROW BEGIN IF OLD.title != NEW.title THEN UPDATE film_text SET title = NEW.title WHERE film_id = OLD.film_id; END IF; END//
	CREATE TRIGGER del_film AFTER DELETE ON film FOR EACH ROW BEGIN DELETE FROM film_text WHERE film_id = OLD.film_id; END//
	CREATE FUNCTION in_stock(p INT) RETURNS BOOLEAN READS SQL DATA BEGIN DECLARE n INT; SELECT COUNT(*) INTO n FROM rental WHERE film_id = p AND return_date IS NULL; RETURN n = 0; END//
	CREATE PROCEDURE report(IN at_least TINYINT UNSIGNED, OUT n INT) READS SQL DATA SQL SECURITY DEFINER BEGIN SELECT COUNT(*) INTO n FROM rental; END//
	DELIMITER ;
	INSERT INTO language (name) VALUES ('English'), ('Deutsch'), ('日本語');
	INSERT INTO film (title, description, release_year, language_id, rating, special_features) SELECT CONCAT('FILM ', seq), CONCAT('A Thoughtful Tale of ', seq, ' Boats'), 1990 + seq % 30, 1 + seq % 3, 1 + seq % 5, seq % 16 FROM seq_1_to_1000;
	INSERT INTO address (address, location) SELECT CONCAT(seq, ' Street'), POINT(seq / 3, -seq / 7) FROM seq_1_to_600;
	INSERT INTO staff (name, picture, store_id) VALUES ('Mike', REPEAT(X'89504E470D0A1A0A', 4000), 1), ('Jon', NULL, 2); INSERT INTO store VALUES (1, 1, 1), (2, 2, 2);
	INSERT INTO rental (film_id, rental_date, return_date) SELECT seq, '2005-05-24 22:53:30' + INTERVAL seq MINUTE, IF(seq % 9, '2005-06-01', NULL) FROM seq_1_to_1000;
	CREATE VIEW film_list AS SELECT f.film_id AS FID, f.title, l.name AS language, in_stock(f.film_id) AS there FROM film f LEFT JOIN language l ON f.language_id = l.language_id;
	CREATE VIEW by_language AS SELECT language, COUNT(*) AS n FROM film_list GROUP BY language;
	CREATE TABLE employees (emp_no INT NOT NULL PRIMARY KEY, birth_date DATE NOT NULL, first_name VARCHAR(14) NOT NULL, gender ENUM('M','F') NOT NULL, hire_date DATE NOT NULL);
	CREATE TABLE departments (dept_no CHAR(4) NOT NULL PRIMARY KEY, dept_name VARCHAR(40) NOT NULL UNIQUE);
	CREATE TABLE dept_emp (emp_no INT NOT NULL, dept_no CHAR(4) NOT NULL, from_date DATE NOT NULL, to_date DATE NOT NULL, PRIMARY KEY (emp_no, dept_no), FOREIGN KEY (emp_no) REFERENCES employees (emp_no) ON DELETE CASCADE,
		FOREIGN KEY (dept_no) REFERENCES departments (dept_no) ON DELETE CASCADE);
	CREATE TABLE salaries (emp_no INT NOT NULL, salary INT NOT NULL, from_date DATE NOT NULL, to_date DATE NOT NULL, PRIMARY KEY (emp_no, from_date), FOREIGN KEY (emp_no) REFERENCES employees (emp_no) ON DELETE CASCADE);
	INSERT INTO departments SELECT CONCAT('d', LPAD(seq, 3, '0')), CONCAT('Department ', seq) FROM seq_1_to_9;
	INSERT INTO employees SELECT 10000 + seq, '1953-09-02' + INTERVAL seq DAY, CONCAT('Name', seq), 1 + seq % 2, '1986-06-26' + INTERVAL seq DAY FROM seq_1_to_3000;
	INSERT INTO dept_emp SELECT 10000 + seq, CONCAT('d00', 1 + seq % 9), '1986-06-26', '9999-01-01' FROM seq_1_to_3000;
	INSERT INTO salaries SELECT 10000 + e.seq, 40000 + e.seq * y.seq, '1986-06-26' + INTERVAL y.seq YEAR, '9999-01-01' FROM seq_1_to_3000 e, seq_1_to_5 y;
	CREATE VIEW latest AS SELECT emp_no, MAX(from_date) AS from_date, MAX(to_date) AS to_date FROM dept_emp GROUP BY emp_no;
	CREATE VIEW current_dept_emp AS SELECT l.emp_no, dept_no, l.from_date, l.to_date FROM dept_emp d INNER JOIN latest l ON d.emp_no = l.emp_no AND d.from_date = l.from_date AND l.to_date = d.to_date;
`

// oddSettings are a server's that its administrator may have chosen for the programs of this server, each with its usual value.
var oddSettings = [][3]string{
	{"sql_select_limit", "2", "DEFAULT"}, {"sql_mode", "'ORACLE,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE'", "DEFAULT"},
	{"time_zone", "'+05:45'", "DEFAULT"}, {"sql_quote_show_create", "0", "1"}, {"autocommit", "0", "1"}, {"completion_type", "'CHAIN'", "DEFAULT"}, {"tx_read_only", "1", "0"},
	{"tx_isolation", "'READ-UNCOMMITTED'", "DEFAULT"}, {"max_join_size", "1", "DEFAULT"}, {"sql_safe_updates", "1", "0"}, {"explicit_defaults_for_timestamp", "0", "1"}, {"sql_if_exists", "1", "0"},
	{"character_set_server", "'ucs2'", "DEFAULT"}, {"old_mode", "'ZERO_DATE_TIME_CAST'", "DEFAULT"}, {"sql_notes", "0", "1"}, {"max_sort_length", "64", "DEFAULT"}, {"sql_auto_is_null", "1", "0"}, {"default_storage_engine", "'MyISAM'", "DEFAULT"},
	{"updatable_views_with_limit", "0", "1"}, {"sql_big_selects", "0", "1"}, {"check_constraint_checks", "1", "1"}, {"auto_increment_increment", "7", "1"},
}

// The server's own settings change neither what is read nor what is written.
func testServerSettings(t *testing.T) {
	s := newSubject(t, ownServer(t))
	s.sql(t, s.db, "SET explicit_defaults_for_timestamp = 1; CREATE TABLE bare_times (id INT PRIMARY KEY, t TIMESTAMP NOT NULL, u TIMESTAMP NOT NULL); INSERT INTO bare_times VALUES (1, 0, '2001-01-01'), (2, '2002-01-01', 0)")
	s.sql(t, s.db, samples)
	want := s.dump(t, s.db)
	set := func(which int) {
		var sql strings.Builder
		for _, o := range oddSettings {
			fmt.Fprintf(&sql, "SET GLOBAL %s = %s;\n", o[0], o[which])
		}
		s.sql(t, "", sql.String())
	}
	set(1)
	check(t, s.capture("db-odd"))
	set(2)
	check(t, s.capture("db-usual"))
	if changes, err := s.driver.Diff(t.Context(), "db-odd", "db-usual", nil); err != nil || len(changes) > 0 {
		t.Errorf("under other settings of the server the same is read as another: %+v, %v", changes, err)
	}
	s.sql(t, s.db, "DELETE FROM rental; DROP TABLE bare_times; DROP VIEW by_language; DELETE FROM salaries; DROP TRIGGER upd_film")
	set(1)
	s.restore(t, "db-odd")
	set(2)
	if s.dump(t, s.db) != want {
		t.Error("it did not come back")
	}
}
