package appfile

import (
	"testing"

	"mulligan/docs/refdoc"
)

// TestReference holds docs/reference/app-file.md to the keys that are read.
func TestReference(t *testing.T) {
	refdoc.Check(t, "app-file.md", refdoc.Keys(t, file{Retention: defaults()}, map[string]refdoc.Key{
		"slug":      {Doc: "the name that commands and the API know it by: lower-case letters, digits and `-`, at most 63, beginning with a letter or digit. Required", Default: "–"},
		"owner":     {Doc: "the user it belongs to, or `guest:ID`; only root may name others than the caller", Default: "who registers it"},
		"workspace": {Doc: "the folder that is protected: an absolute path, no symbolic link in it. Required", Default: "–"},
		"unit":      {Doc: "what is stopped and started: a systemd service, or containers of Docker or Podman: `compose:PROJECT`, `container:NAME` ([how](../how-to/containers.md))", Default: "`of-app-SLUG.service`, where there is one and nothing else is named"},
		"run":       {Doc: "where there is no unit: a command that the daemon runs in the workspace, as the owner; program and arguments apart"},
		"engine":    {Doc: "for containers: the socket of their engine", Default: "Docker's or Podman's, where they are"},
		"volumes":   {Doc: "for containers: the volumes that are captured, by their names in the compose file or the engine's own; the layer of each is `volume:NAME`"},
		"domain":    {Doc: "the libvirt domain that the app lives in ([how](../how-to/vm.md))"},
		"uri":       {Doc: "libvirt's address", Default: "`\"qemu:///system\"`; `\"qemu:///session\"` at a user's own daemon"},
		"shutdown":  {Doc: "how the domain goes down: `clean` (the guest is asked) or `destroy` (it is switched off)", Default: "`\"clean\"`"},
		"auto":      {Doc: "whether the files are followed, and a checkpoint made before the first write of each turn"},
		"follow":    {Doc: "whether the daemon notes which files change while they change, so that a checkpoint or a rollback looks at those instead of all; `auto = true` needs it", Default: "`true` where the kernel tells of every change and allows enough watches"},
		"titles":    {Doc: "whether the first words of a prompt are kept, on this host only, as the title of its turn; `false` also deletes those that were kept", Default: "`true`"},
		"exclude":   {Doc: "patterns in the syntax of `.gitignore`: what they match is never captured, and never touched by a restore"},

		"health.url":     {Doc: "the app is well when a GET of it is answered with a status of 2xx or 3xx"},
		"health.command": {Doc: "the app is well when this command, run in the workspace as the owner, ends with 0"},
		"health.timeout": {Doc: "how long it is asked again until it is well", Type: "time", Default: "`\"10s\"`"},

		"retention.keep_last":    {Doc: "how many of the newest stay; the automatic ones, of turns and of rollbacks, are not counted, and never take another's place"},
		"retention.daily_days":   {Doc: "of each of so many days (in UTC, today is one of them) the oldest stays; automatic ones are not counted"},
		"retention.keep_turns":   {Doc: "how many of the newest checkpoints of turns stay; turns that nobody told of have as many of their own"},
		"retention.keep_safety":  {Doc: "how many of the newest safety checkpoints, which rollbacks and reverts make, stay"},
		"retention.max_bytes":    {Doc: "while what is left occupies more, safety checkpoints go, then those of turns, the oldest first, but never the newest of all. What somebody asked for stays, and `mulligan status` says that it is too much. `0` is no limit"},
		"retention.expire_after": {Doc: "the age at which a checkpoint goes, in hours; it counts for checkpoints that are made from then on. `\"0\"` is never", Type: "time"},

		"fork.dir":          {Doc: "the folder in which the folders of forks are made; a relative path begins at the workspace", Default: "`SLUG-forks` beside the workspace"},
		"fork.expose":       {Doc: "ports of the app: each fork has an address on the host for each of them, besides that of the health check", Type: "numbers", Default: "none"},
		"fork.expire_after": {Doc: "the time after which a fork is dropped if nobody touched it: no command named it, and nothing was written in its folder. `\"0\"` is never", Type: "time", Default: "`\"0\"`"},

		"fork.isolation": {Doc: "how forks are kept apart from the app: `namespace` or `ports` ([what that means](../how-to/forks.md#without-namespaces))", Default: "`namespace` where the kernel allows it, else `ports`"},
		"fork.network":   {Doc: "whether forks have a way out, to where their host gets to ([what that means](../how-to/forks.md#what-a-fork-reaches))", Type: "true or false", Default: "`true`"},
		"fork.ports":     {Doc: "with `ports`: the variables that hold the app's ports. Each fork gets free ones, and keeps them", Default: "none"},
		"fork.dotenv":    {Doc: "with `ports`: files in the workspace whose lines of these variables, and of the databases' `env`, are replaced in forks", Default: "none"},

		"fork.compose": {Doc: "for an app that is a compose project: the command of the compose tool that makes those of forks, program and arguments apart", Default: "the tool that made the app's"},

		"remote.keep_last":  {Doc: "`mulligan remote prune` keeps so many of the newest checkpoints of a remote, beside what this host has and what is pinned; if this and `daily_days` are 0, it keeps all"},
		"remote.daily_days": {Doc: "it also keeps the first checkpoint of each of so many of the newest days (of UTC) of which there is one"},
		"remote.auto":       {Doc: "which checkpoints are sent to the app's remotes by themselves: `all`, `pinned`, or `daily` (the first of each day, by UTC)", Default: "none: they are sent by hand"},

		"database.name":     {Doc: "what it is called; its layer is `db:NAME`", Default: "the database's own"},
		"database.driver":   {Doc: driverNames(), Default: "what the URL of `dsn` says"},
		"database.dsn":      {Doc: "where it is: a URL; for postgres `key=value` pairs will do; for sqlite a path in the workspace, or an absolute one. Required", Default: "–"},
		"database.mode":     {Doc: "for postgres: `logical`, `physical` or `auto` ([what that means](../how-to/postgres.md))", Default: "`\"auto\"`"},
		"database.data_dir": {Doc: "for postgres: the cluster's data folder, which mode `physical` needs, unless the server is in a container of the app. Root names one that is not the app's owner's"},
		"database.unit":     {Doc: "for postgres, with `data_dir`: the systemd service of the cluster. Root names it. Without one the daemon starts and stops the server itself, by `pg_ctl`, as the folder's owner"},
		"database.env":      {Doc: "the variable that tells the app where the database is: forks with isolation `ports` have one of their own there"},
	}, map[string]string{
		"": `# The app file

An app file says what an app consists of. The host's daemon reads every ` + "`*.toml`" + ` in ` + "`/etc/mulligan/apps.d`" + `; ` + "`mulligan app add --file FILE`" + `
registers the app of one. A key that is not listed here is an error that names its line. What is registered without a file
(` + "`mulligan app add --slug …`, `mulligan app set KEY=VALUE`" + `) is held to the same rules.

A *text* is quoted; *texts* are a list of them; a *time* is a text like ` + "`\"90s\"` or `\"720h\"`" + `; a *size* is a number of bytes, or a text like ` + "`\"20GiB\"`" + `.`,
		"health":    "## [health]\n\nHow to tell whether the app works: exactly one of `url` and `command`.",
		"retention": "## [retention]\n\nWhat pruning leaves. Pinned checkpoints always stay, and so do the newest of all and the newest that somebody asked for.",
		"fork":      "## [fork]\n\nHow the app is [forked](../how-to/forks.md).",
		"remote":    "## [remote]\n\nHow the app uses its [remotes](../how-to/remote.md).",
		"database":  "## [[database]]\n\nOne table for each database.",
	}))
}
