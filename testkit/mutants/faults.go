package main

// faults are spread over all packages. A change of the product that moves one of these
// lines moves it here too: a test sees to that.
var faults = []fault{
	{"a plan is not synced", "durable/durable.go", "\t\terr = f.Sync()\n", "\t\terr = nil\n", "RenamesAreSynced", "./daemon"},
	{"a folder is not synced", "durable/durable.go", "	return errors.Join(f.Sync(), f.Close())\n", "	return f.Close()\n", "IsSynced|AreSynced", "./daemon"},
	{"restored files are not synced", "snap/files/apply/durable.go", "			err = f.Sync()\n		}\n		return a.failed(batch", "		}\n		return a.failed(batch", "AreSynced", "./daemon"},
	{"the sum of a record's header is not compared", "snap/cas/format.go", " || le.Uint32(p[60:]) != headerSum(p, seq, off)", "", "Flipped|Torn|Damage", "./snap/cas"},
	{"protected checkpoints are pruned", "daemon/retention/retention.go", "it.Pinned || it.Protected\n", "it.Pinned\n", ".", "./daemon/retention"},
	{"a day more is kept", "daemon/retention/retention.go", "today-d < int64(days)", "today-d <= int64(days)", ".", "./daemon/retention"},
	{"groups of root stay", "privsep/drop.go", "err := syscall.Setgroups(u.Groups); err", "err := error(nil); err", ".", "./privsep"},
	{"links below a workspace are followed", "snap/beneath/beneath.go", "unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_XDEV", ".", "./snap/beneath"},
	{"a SQLite file is replaced unlocked", "snap/sqlite/lock.go", "	return setLock(f, unix.F_WRLCK, pendingByte, 2+sharedSize)", "	return nil", ".", "./snap/sqlite"},
	{"a request's csrf is not compared", "daemon/gate/session.go", "[]byte(s.csrf)) != 1", "[]byte(s.csrf)) == 2", "TCP|Session|Page|UI|Gate", "./daemon"},
	{"the socket's folder is everybody's", "ipc/listen.go", "os.Mkdir(dir, 0o700)", "os.Mkdir(dir, 0o755)", ".", "./ipc"},
	{"the error of an undo is ignored", "daemon/rollback/back.go", "	if err := p.sw.Undo(ctx); err != nil {\n		return err\n	}\n	if r.plan.Verify {", "	_ = p.sw.Undo(ctx)\n	if r.plan.Verify {", "PutBack|Fault|Unfinished", "./daemon"},
	{"a rollback never undoes a layer", "daemon/rollback/back.go", "	if err := p.sw.Undo(ctx); err != nil {\n		return err\n	}\n	if r.plan.Verify {", "	if r.plan.Verify {", "PutBack|FaultAtEvery|Rollback", "./daemon"},
	{"a Redis keeps the password of a restore", "snap/redis/master.go", `{{"CONFIG", "SET", "masterauth", p.Lead.MasterAuth}, `, "{", "Settings|Conformance|Killed", "./snap/redis"},
	{"a restored database stays closed", "snap/postgres/logical/switch.go", "ALLOW_CONNECTIONS true; COMMENT ON DATABASE \" + quote(db) + \" IS \" + value", "ALLOW_CONNECTIONS false; COMMENT ON DATABASE \" + quote(db) + \" IS \" + value", "Conformance/(RoundTrip|Undo)", "./snap/postgres/logical"},
	{"tables are exchanged while they may be written", "snap/mysql/exchange.go", "	err := holder.exec(ctx, \"UNLOCK TABLES\")\n	if e := <-done; e != nil {", "	err := error(nil)\n	if e := error(nil); e != nil {", "Conformance/(RoundTrip|Undo)", "./snap/mysql"},
	{"frozen disks may be written to", "snap/disk/imagefile/files.go", "	want := flags | immutableFlag\n", "	want := flags\n", "Immutable|Frozen|Capture|Conformance|Stale|Damaged", "./snap/disk"},
	{"records are sorted by their keys alone", "snap/extsort/extsort.go", "return cmp.Or(bytes.Compare(a.key, b.key), bytes.Compare(a.value, b.value)) < 0", "return bytes.Compare(a.key, b.key) < 0", ".", "./snap/extsort"},
	{"an agent's settings get another mode", "agents/file.go", "		err = file.Chmod(mode)\n", "		err = nil\n", ".", "./agents"},
	{"a rollback that failed is no error to an agent", "mcpserver/rollback.go", "&mcp.CallToolResult{IsError: true}, rollbackOut", "&mcp.CallToolResult{}, rollbackOut", ".", "./mcpserver"},
	{"a file between two states with another time is ours", "snap/files/apply/between.go", "return x.Mtime == e.Mtime })", "return true })", "Between", "./snap/files/apply"},
	{"a path that could not be read is forgotten", "snap/files/follow/dirty.go", "	for p, why := range failed {\n		j.todo.path(p)\n", "	for _, why := range failed {\n", "Lease", "./snap/files"},
	{"a SQLite file that is put back is not synced", "snap/sqlite/install.go", "			err = errors.Join(e.attributes().apply(f), f.Sync())", "			err = e.attributes().apply(f)", "AreSynced|IsSynced", "./daemon"},
	{"a replaced SQLite file is not synced", "snap/sqlite/replace.go", "	if err := f.Sync(); err != nil {", "	if err := error(nil); err != nil {", "AreSynced|IsSynced", "./daemon"},
	{"an agent's folder is not synced", "agents/file.go", "	return dir.Sync()\n", "	return nil\n", "AreSynced", "./agents"},
	{"a prune goes on in a bucket that locks objects", "remote/prune.go", "	if locks {\n", "	if locks && false {\n", "Servers/versitygw/PruneAppendOnly", "./remote"},
	{"capabilities may stay", "privsep/drop.go", "c.Effective != 0 || c.Permitted != 0", "c.Effective != 0 && c.Permitted == 0", ".", "./privsep"},
	{"a node that lives again loses its references", "snap/cas/refs.go", "again := ok && e.refs > 0 ", "again := false ", "LiveAgain", "./snap/cas"},
}
