package config

import (
	"maps"
	"testing"

	"mulligan/docs/refdoc"
)

// TestReference holds docs/reference/config.md to the keys that are read.
func TestReference(t *testing.T) {
	docs := map[string]refdoc.Key{
		"socket":       {Doc: "the unix socket that the API is served on (`--socket`, `MULLIGAN_SOCKET`); at most 107 bytes", Default: "see above"},
		"state_dir":    {Doc: "the folder that everything is kept in (`--state-dir`, `MULLIGAN_STATE_DIR`)", Default: "see above"},
		"http":         {Doc: "also serve the API on this TCP address (`--http`; [how](../how-to/many-users.md))"},
		"tls_cert":     {Doc: "the file of the certificate for TCP; needed where `http` is not on loopback"},
		"tls_key":      {Doc: "the file of its key; with `tls_cert`"},
		"hosts":        {Doc: "names that TCP is reached by, beside its address"},
		"log_level":    {Doc: "`debug`, `info`, `warn` or `error` (`--log-level`)"},
		"stop_timeout": {Doc: "how long an app may take to stop; a supervised command is then killed, and a domain switched off, whose guest has this time of its own", Type: "time"},
		"quiet_gap":    {Doc: "after so long without a write, the next one begins a turn of an agent that nobody announced", Type: "time"},
		"titles":       {Doc: "whether the first words of a prompt are kept as the title of its turn; `false`: in no app"},

		"limits.max_files": {Doc: "entries of a workspace, folders included"},
		"limits.max_forks": {Doc: "[forks](../how-to/forks.md) of an app; 0 means no limit"},
		"limits.max_bytes": {Doc: "what a workspace's files may hold together"},

		"rehearse.max_bytes": {Doc: "databases up to this size, as their servers tell it, are rehearsed; `0` switches rehearsals off"},

		"ceph.conf":    {Doc: "the path of Ceph's configuration, where a domain's definition names none", Default: "Ceph's own"},
		"ceph.user":    {Doc: "the cephx user of the daemon, without `client.`", Default: "the one in the domain's definition"},
		"ceph.keyring": {Doc: "the path of the keyring with that user's key", Default: "the one that Ceph's configuration names"},

		"bucket.url":        {Doc: "`s3://BUCKET/PREFIX`: remotes in it, at any place below the prefix, may use the credentials. Required", Default: "–"},
		"bucket.endpoint":   {Doc: "the URL of the server; the credentials are sent to no other", Default: "AWS"},
		"bucket.region":     {Doc: "the bucket's region", Default: "the server is asked"},
		"bucket.access_key": {Doc: "the key. Required", Default: "–"},
		"bucket.secret_key": {Doc: "its secret; the file must not be readable by everybody. Required", Default: "–"},
		"bucket.users":      {Doc: "the users whose apps may use the credentials, beside root's", Default: "none"},

		"guests.allow": {Doc: "whether callers on TCP may name themselves by `X-Guest-Id`"},
		"guests.user":  {Doc: "whose rights guests' apps have; not root"},
		"guests.dir":   {Doc: "each guest's folders are below `DIR/ID`"},
	}
	for name, doc := range map[string]refdoc.Key{
		"apps":                {Doc: "registered apps, and removed ones whose checkpoints are kept"},
		"checkpoints":         {Doc: "checkpoints of all apps together"},
		"bytes":               {Doc: "what these occupy"},
		"requests_per_second": {Doc: "requests a second on the average; ten times as many at once"},
		"concurrent":          {Doc: "requests under way, event streams among them"},
	} {
		maps.Copy(docs, map[string]refdoc.Key{"quota." + name: doc, "guests." + name: doc})
	}
	refdoc.Check(t, "config.md", refdoc.Keys(t, defaultFile(), docs, map[string]string{
		"": `# mulligand's configuration

Flags of ` + "`mulligand`" + ` win over the environment, which wins over the file ` + "`mulligand.toml`" + `, which wins over the defaults. No file is
needed. A fault in it is one line that says where, exit code 2, and nothing is started. [The app file](app-file.md) is another page.

| | the host's daemon (root) | a user's own (` + "`mulligand --user`" + `) |
| --- | --- | --- |
| file (` + "`--config`" + `) | ` + "`" + testPaths(t, false).file + "` | `$XDG_CONFIG_HOME/mulligan/mulligand.toml`, else `" + testPaths(t, true).file + "`" + ` |
| apps' files | ` + "`" + testPaths(t, false).apps() + `/*.toml` + "`" + ` (beside the file) | none |
| state | ` + "`" + testPaths(t, false).stateDir + "` | `$XDG_STATE_HOME/mulligan`, else `" + testPaths(t, true).stateDir + "`" + ` |
| socket | ` + "`" + testPaths(t, false).socket + "`" + ` | ` + "`$XDG_RUNTIME_DIR/mulligan/mulligan.sock`, else `/tmp/mulligan-UID/mulligan.sock`" + ` |

Flags: ` + "`--user`, `--config FILE`, `--state-dir DIR`, `--socket PATH`, `--http ADDR`, `--log-level L`, `--version`" + `.

A *text* is quoted; *texts* are a list of them; a *time* is a text like ` + "`\"90s\"`" + `; a *size* is a number of bytes, or a text like ` + "`\"20GiB\"`" + `.
Paths are absolute.`,
		"bucket": "## [[bucket]]\n\nOne table for each bucket that the daemon has credentials for. [Remotes](../how-to/remote.md) whose users have none of their own use them.",
		"ceph":   "## [ceph]\n\nHow the daemon reaches the cluster that has [the disks of a domain](../how-to/vm.md#disks-on-ceph).",
		"limits": "## [limits]\n\nA workspace that holds more is refused.",
		"rehearse": "## [rehearse]\n\nAfter the first checkpoint of a Postgres (mode logical), MySQL or MariaDB database, and after one whose schema is another than before, the daemon restores it once in the background: beside the\n" +
			"live database, on the same server, compares the two and drops the copy. It takes the size of the database on the server for as long as that lasts, one database at a time, and ends at once when an\n" +
			"operation wants the app. What cannot be restored is a problem of the app and a warning of its checkpoints.",
		"quota":  "## [quota]\n\nWhat each owner may have and ask for, root excepted. `0` is no limit.",
		"guests": "## [guests]\n\nCallers on TCP whom nobody knows but by the id that they send. The numbers are of each guest; `0` is no limit.",
	}))
}

// testPaths are the defaults of a user whose home is ~.
func testPaths(t *testing.T, user bool) paths {
	t.Helper()
	p, err := defaults(user, func(name string) string {
		if name == "HOME" {
			return "/~"
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	if user {
		p.file, p.stateDir = p.file[1:], p.stateDir[1:]
	}
	return p
}
