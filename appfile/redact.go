package appfile

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"mulligan/ipc"
)

// parameters has the parameters of each driver's DSN. They are not secret, except those in secretParameters.
var parameters = map[string][]string{
	"postgres": {"host", "port", "user", "password", "dbname", "database", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey",
		"application_name", "connect_timeout", "channel_binding", "target_session_attrs"},
	"mysql": {"socket", "tls"},
	"redis": {"socket"},
}

var secretParameters = []string{"password"}

// hidden replaces text that is not shown.
const hidden = "***"

// harmless reports whether a parameter's value may be shown.
func harmless(driver, key string) bool {
	return slices.Contains(parameters[driver], key) && !slices.Contains(secretParameters, key)
}

// Redact returns the DSN of a database in a form for messages, logs and the audit trail. It keeps the scheme, user, host, port,
// database and those parameters of a URL or of key=value pairs that are known to be harmless, and the path of sqlite. It
// replaces everything else by [hidden] or leaves it out, also if the DSN is not valid.
func Redact(db ipc.Database) string {
	scheme, rest, isURL := strings.Cut(db.DSN, "://")
	driver := db.Driver
	if driver == "" {
		before, _, _ := strings.Cut(db.DSN, ":")
		driver = driverOf(before)
	}
	switch {
	case !isURL && driver == "sqlite":
		return db.DSN
	case !isURL && driver == "postgres":
		return redactPairs(db.DSN)
	case !isURL || driverOf(scheme) != driver || driver == "sqlite":
		return hidden
	}
	shown, ok := redactURL(driver, scheme, rest)
	if !ok {
		return scheme + "://" + hidden
	}
	return shown
}

// plainHost matches a host with its port, or the escaped path of a socket's folder.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9._~%/\[\]:-]*$`)

// redactURL returns the harmless parts of a URL. It hides the whole URL if a part may belong to a password that was not
// escaped.
func redactURL(driver, scheme, rest string) (shown string, ok bool) {
	host := ""
	if driver == "postgres" {
		rest, host = withoutSocket(rest)
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil || u.Opaque != "" {
		return "", false
	}
	if host == "" {
		host = u.Host
	}
	if !plainHost.MatchString(host) || strings.ContainsAny(u.EscapedPath(), "@:") {
		return "", false
	}
	var b strings.Builder
	b.WriteString(scheme + "://")
	if u.User != nil {
		b.WriteString(url.User(u.User.Username()).String())
		if _, has := u.User.Password(); has {
			b.WriteString(":" + hidden)
		}
		b.WriteByte('@')
	}
	b.WriteString(host + u.EscapedPath())
	if query := redactQuery(driver, u.RawQuery); query != "" {
		b.WriteString("?" + query)
	}
	return b.String(), true
}

// withoutSocket removes a host that is an escaped path from a URL. libpq allows such a host, and package url does not.
func withoutSocket(rest string) (without, host string) {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	if !strings.HasPrefix(strings.ToLower(rest[begin:end]), "%2f") {
		return rest, ""
	}
	return rest[:begin] + rest[end:], rest[begin:end]
}

// redactQuery keeps the harmless parameters, and replaces all others by one [hidden].
func redactQuery(driver, query string) string {
	var kept []string
	others := false
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		if part == "" {
			continue
		}
		if harmless(driver, key) && !strings.ContainsAny(value, "@#;=") {
			kept = append(kept, part)
		} else {
			others = true
		}
	}
	if others {
		kept = append(kept, hidden)
	}
	return strings.Join(kept, "&")
}

// redactPairs returns a connection string with only its harmless key=value pairs.
func redactPairs(dsn string) string {
	rest, others := strings.CutSuffix(dsn, " "+hidden) // shown already
	set, ok := pairs(rest)
	if !ok {
		return hidden
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(set)) {
		switch {
		case harmless("postgres", key):
			all = append(all, key+"="+quotePair(set[key]))
		case slices.Contains(secretParameters, key):
			all = append(all, key+"="+hidden)
		default:
			others = true
		}
	}
	if others {
		all = append(all, hidden)
	}
	return strings.Join(all, " ")
}

var barePair = regexp.MustCompile(`^[A-Za-z0-9_./:-]+$`)

func quotePair(v string) string {
	if barePair.MatchString(v) {
		return v
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}

// unknownParameter refuses a URL with a parameter that its driver does not know. The driver would ignore the parameter, and it
// might be a password.
func unknownParameter(db ipc.Database) *fault {
	u, err := url.Parse(db.DSN)
	if err != nil || db.Driver == "sqlite" || !strings.Contains(db.DSN, "://") {
		return nil
	}
	known := parameters[db.Driver]
	query, err := url.ParseQuery(u.RawQuery)
	if u.Fragment != "" || err != nil {
		return &fault{key: "dsn", what: "the dsn of database " + db.Name + " has a # or a query that cannot be read", hint: "write a # as %23, a & as %26 and a ; as %3B"}
	}
	for key := range query {
		if !slices.Contains(known, key) {
			return &fault{key: "dsn", what: "the dsn of database " + db.Name + " has a parameter that is not known for " + db.Driver,
				hint: "the parameters allowed after the ? of the URL are " + strings.Join(known, ", ") + "; a password stands before the @"}
		}
	}
	return nil
}

// OnlyKnown returns the URL of a database without the parameters that mulligan does not know, such as those of frameworks.
func OnlyKnown(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil || !strings.Contains(dsn, "://") || u.RawQuery == "" {
		return dsn
	}
	known := parameters[driverOf(u.Scheme)]
	before, after, _ := strings.Cut(dsn, "?")
	query, fragment, hasFragment := strings.Cut(after, "#")
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if key, _, _ := strings.Cut(part, "="); slices.Contains(known, key) {
			kept = append(kept, part)
		}
	}
	if len(kept) > 0 {
		before += "?" + strings.Join(kept, "&")
	}
	if hasFragment {
		before += "#" + fragment
	}
	return before
}
