// Package offsite has the commands of remotes: remote, push, fetch and clone.
package offsite

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mulligan/appfile"
	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/remote/identity"
)

// Host is what the commands use of the program.
type Host struct {
	Out        *output.Printer
	App        *string                                    // the value of --app
	Start      func(context.Context) (*ipc.Client, error) // of the user's daemon, which it starts if none runs
	Target     func(context.Context) (client *ipc.Client, app string, err error)
	Checkpoint func(ctx context.Context, name string) (client *ipc.Client, app string, id ipc.CheckpointID, err error)
	Complete   func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) // checkpoints
	Args       func(cmd *cobra.Command, args []string, least, most int) error
	Group      func(*cobra.Command) *cobra.Command
	Lasting    func(*cobra.Command) *cobra.Command
}

// args returns the check of a command that takes this many arguments.
func (h Host) args(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return h.Args(cmd, args, least, most) }
}

// about returns what a command runs that is about the app of --app, or of the current folder.
func (h Host) about(run func(ctx context.Context, client *ipc.Client, app string, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, app, err := h.Target(cmd.Context())
		if err != nil {
			return err
		}
		return run(cmd.Context(), client, app, args)
	}
}

// server has the flags that say where a bucket is, and with whose credentials it is used.
type server struct {
	endpoint, region string
	daemonKeys       bool
}

func (s *server) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.endpoint, "endpoint", "", "`URL` of the server (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or AWS itself)")
	cmd.Flags().StringVar(&s.region, "region", "", "the bucket's region (default: AWS_REGION, or the server is asked)")
	cmd.Flags().BoolVar(&s.daemonKeys, "daemon-keys", false, "use the daemon's credentials for the bucket, and not yours")
}

// place returns where the bucket is, with the credentials.
func (s *server) place() (at, in string, k ipc.BucketKeys, err error) {
	if !s.daemonKeys {
		k, err = keys(os.Getenv)
	}
	return cmp.Or(s.endpoint, endpoint(os.Getenv)), cmp.Or(s.region, region(os.Getenv)), k, err
}

// NewRemote returns the command remote.
func NewRemote(h Host) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remote",
		Short:   "Add, list, prune and remove places in object stores to which checkpoints go",
		Example: "  mulligan remote key new shop.key\n  mulligan remote add backup s3://backups/mulligan --recipient age1…\n  mulligan remote show",
	}
	key := h.Group(&cobra.Command{Use: "key", Short: "Make identities, which alone can read what is sent", Example: "  mulligan remote key new shop.key"})
	key.AddCommand(newKey(h))
	cmd.AddCommand(h.Lasting(newAdd(h)), newList(h), newShow(h), h.Lasting(newPruneRemote(h)), h.Lasting(newRemove(h)), key)
	return h.Group(cmd)
}

const addLong = `Add a remote to the app: a place in a bucket of an S3-compatible server, to which its
checkpoints go, encrypted for the recipients. This host cannot read what it sent.

What the key can do there is checked first: it must write, read, list, and write only what
is not there yet. Whether it can delete is told. The credentials are yours, from
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or from ~/.aws/credentials (AWS_PROFILE), and
are never shown again. Where you have none, or with --daemon-keys, they are those that
mulligand.toml has for the bucket, if you may use them. Again with the same name and URL,
the remote gets new credentials and recipients. A new recipient cannot read what was sent
before: the checkpoints that were sent and are on this host are sent again. The others are
told by mulligan verify --remote, and by mulligan list --json.

Checkpoints go there by themselves with: mulligan app set remote.auto=all

In a pipe: a line per field, its name and its value, as mulligan remote show has them.`

func newAdd(h Host) *cobra.Command {
	var s server
	var req ipc.RemoteRequest
	cmd := &cobra.Command{
		Use:     "add NAME s3://BUCKET/PREFIX",
		Short:   "Add a remote, after checking what its key can do",
		Long:    addLong,
		Example: "  mulligan remote add backup s3://backups/mulligan --recipient age1…\n  mulligan remote add minio s3://apps --endpoint http://127.0.0.1:9000 --recipient age1…",
		Args:    h.args(2, 2),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) (err error) {
			req.Name, req.URL = args[0], args[1]
			if req.Endpoint, req.Region, req.BucketKeys, err = s.place(); err != nil {
				return err
			}
			r, err := client.AddRemote(ctx, app, req)
			if err != nil {
				return err
			}
			return show(h.Out, r)
		}),
	}
	s.add(cmd)
	cmd.Flags().StringArrayVar(&req.Recipients, "recipient", nil, "who can read what is sent, as `age1…`; may be repeated")
	return cmd
}

func newList(h Host) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the app's remotes, and how far they are behind",
		Long:    "List the app's remotes, and how far they are behind.\n\nIn a pipe, the fields are: name, state, URL, number of checkpoints there, newest of them,\nnumber that is not there yet, what is wrong.",
		Example: "  mulligan remote list",
		Args:    h.args(0, 0),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, _ []string) error {
			list, err := client.Remotes(ctx, app)
			if err != nil {
				return err
			}
			return printList(h.Out, list)
		}),
	}
}

// printList prints a table of remotes.
func printList(p *output.Printer, list ipc.RemoteList) error {
	if p.JSON {
		return p.PrintJSON(list)
	}
	var rows [][]string
	for _, r := range list.Remotes {
		rows = append(rows, []string{p.Text(r.Name), p.Text(r.State), p.Text(r.URL), strconv.Itoa(r.Checkpoints), p.Text(string(r.UpTo)), strconv.Itoa(r.Behind), p.Text(r.Problem)})
	}
	p.Prose([]string{"REMOTE", "STATE", "URL", "THERE", "UP TO", "BEHIND", "PROBLEM"}, rows)
	return nil
}

func newShow(h Host) *cobra.Command {
	return &cobra.Command{
		Use:     "show [NAME]",
		Short:   "Show a remote: what is there, how far it is behind, what it costs",
		Long:    "Show a remote of the app: what is there, how far it is behind and since when, and what was\nasked of its server. NAME may be left out where there is one.\n\nIn a pipe: a line per field, its name and its value.",
		Example: "  mulligan remote show backup",
		Args:    h.args(0, 1),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) error {
			r, err := remoteOf(ctx, client, app, args, "remote show")
			if err != nil {
				return err
			}
			return show(h.Out, r)
		}),
	}
}

// remoteOf returns the remote of the app that args name, or its only one. op is what asks, for the error.
func remoteOf(ctx context.Context, client *ipc.Client, app string, args []string, op string) (ipc.Remote, error) {
	list, err := client.Remotes(ctx, app)
	if err != nil {
		return ipc.Remote{}, err
	}
	if len(args) == 0 && len(list.Remotes) > 1 {
		return ipc.Remote{}, errs.New(errs.Invalid, op, "the app has %d remotes", len(list.Remotes)).WithHint("name one: `mulligan remote list`")
	}
	for _, r := range list.Remotes {
		if len(args) == 0 || r.Name == args[0] {
			return r, nil
		}
	}
	if len(args) == 0 {
		return ipc.Remote{}, errs.New(errs.NotFound, op, "the app has no remote").WithHint("add one: `mulligan remote add`")
	}
	return ipc.Remote{}, errs.New(errs.NotFound, op, "the app has no remote %.64q", args[0]).WithHint("`mulligan remote list` shows its remotes, and `mulligan remote add` adds one")
}

// show prints a remote.
func show(p *output.Printer, r ipc.Remote) error {
	if p.JSON {
		return p.PrintJSON(r)
	}
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return p.Time(*t)
	}
	fields := [][2]string{
		{"name", p.Text(r.Name)}, {"url", p.Text(r.URL)}, {"endpoint", p.Text(r.Endpoint)}, {"state", p.Text(r.State)}, {"problem", p.Text(r.Problem)}, {"next_try", at(r.NextTry)},
		{"checkpoints", strconv.Itoa(r.Checkpoints)}, {"up_to", p.Text(string(r.UpTo))}, {"up_to_made", at(r.UpToMade)}, {"behind", strconv.Itoa(r.Behind)}, {"behind_since", at(r.BehindSince)},
	}
	for _, l := range r.Left {
		fields = append(fields, [2]string{"left", p.Text(l)})
	}
	for _, to := range r.Recipients {
		fields = append(fields, [2]string{"recipient", p.Text(to)})
	}
	fields = append(fields, [][2]string{
		{"keys", p.Text(r.Keys)}, {"packs", strconv.Itoa(r.Packs)}, {"stored_bytes", p.Size(r.StoredBytes)},
		{"requests", strconv.FormatInt(r.Requests, 10)}, {"sent_bytes", p.Size(r.SentBytes)}, {"added_at", p.Time(r.AddedAt)}, {"log_key", p.Text(r.LogKey)},
	}...)
	for _, note := range r.Abilities.Notes {
		fields = append(fields, [2]string{"key", p.Text(note)})
	}
	p.Fields(fields)
	return nil
}

func newRemove(h Host) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Short:   "Forget a remote; what was sent stays there",
		Long:    "Forget a remote of the app, with its credentials. What was sent stays in the bucket.",
		Example: "  mulligan remote remove backup",
		Args:    h.args(1, 1),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) error {
			return client.RemoveRemote(ctx, app, args[0])
		}),
	}
}

const verifyLong = `

With --remote, check instead that all that this host sent to a remote is there, and with
--full that it is as it was sent. What is not is sent again, if this host has it. Until
then each check tells which checkpoints are in doubt there. One that is on the remote alone
is told until mulligan fetch brings it here, or mulligan remote prune removes it, as the
app's settings say; one that was pinned stays. In a pipe: the remote, "ok" or "damaged" and
the number of objects, then a line per problem: the remote, "problem", what is wrong.`

// WithRemote makes cmd, which checks a checkpoint, a command that can check a remote instead. It returns cmd.
func (h Host) WithRemote(cmd *cobra.Command) *cobra.Command {
	var name string
	var full bool
	args, run := cmd.Args, cmd.RunE
	cmd.Long += verifyLong
	cmd.Example += "\n  mulligan verify --remote backup --full"
	cmd.Flags().StringVar(&name, "remote", "", "check what is on the remote `NAME`, and not a checkpoint")
	cmd.Flags().BoolVar(&full, "full", false, "with --remote: read all of it")
	cmd.Args = func(cmd *cobra.Command, list []string) error {
		if name != "" {
			return h.Args(cmd, list, 0, 0)
		}
		return args(cmd, list)
	}
	cmd.RunE = func(cmd *cobra.Command, list []string) error {
		if name != "" {
			return h.verify(cmd.Context(), name, full)
		}
		return run(cmd, list)
	}
	return cmd
}

// verify checks what is on a remote of the app, and prints what is wrong with it.
func (h Host) verify(ctx context.Context, name string, full bool) error {
	client, app, err := h.Target(ctx)
	if err != nil {
		return err
	}
	res, err := client.CheckRemote(ctx, app, name, full)
	if err != nil {
		return err
	}
	p := h.Out
	if p.JSON {
		err = p.PrintJSON(res)
	} else {
		verdict := "ok"
		if !res.OK {
			verdict = "damaged"
		}
		rows := [][]string{{p.Text(name), verdict, fmt.Sprintf("%d objects were looked at", res.Objects)}}
		for _, problem := range res.Problems {
			rows = append(rows, []string{p.Text(name), "problem", p.Text(problem)})
		}
		p.Prose([]string{"REMOTE", "RESULT", "WHAT"}, rows)
	}
	if err == nil && !res.OK {
		err = errs.New(errs.Corrupt, "verify", "%s is damaged: %s", name, output.Count(len(res.Problems), "problem")).
			WithHint("what this host has is sent again: `mulligan push --wait CP` waits for that; what is on the remote alone is told until `mulligan remote prune` removes it")
	}
	return err
}

const keyLong = `Make an identity and write it to FILE, which must not exist, for you alone to read. It is
what reads a remote: keep it elsewhere than on this host, as whoever has lost it can read
nothing that was sent. What is printed is its recipient, for mulligan remote add.

In a pipe, the field is: the recipient.`

func newKey(h Host) *cobra.Command {
	return &cobra.Command{
		Use:     "new FILE",
		Short:   "Make an identity, and print its recipient",
		Long:    keyLong,
		Example: "  mulligan remote key new shop.key",
		Args:    h.args(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			const op = "remote key new"
			text, recipient, err := identity.New()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return &errs.Error{Kind: errs.Failed, Op: op, Err: err, Hint: "name a file that does not exist"}
			}
			_, err = f.WriteString(text)
			if err == nil {
				err = f.Sync()
			}
			if err = errs.Also(err, f.Close()); err != nil {
				return errs.Wrap(errs.Failed, op, err)
			}
			if h.Out.JSON {
				return h.Out.PrintJSON(map[string]string{"recipient": recipient, "file": args[0]})
			}
			h.Out.Println(recipient)
			return nil
		},
	}
}

const pushLong = `Send checkpoints to the app's remotes: the newest, or those that are named. They are sent
in the background, and again until they are there; with --wait, the command ends when they
are. Only what a remote lacks is sent.

A remote has one host that writes to it. With --take-over, that is this one from now on:
the other one stops, and everything is sent again.

In a pipe, the fields are those of mulligan remote list.`

// NewPush returns the command push.
func NewPush(h Host) *cobra.Command {
	var req ipc.PushRequest
	cmd := &cobra.Command{
		Use:               "push [CP...]",
		Short:             "Send checkpoints to the app's remotes",
		Long:              pushLong,
		Example:           "  mulligan push --wait\n  mulligan push 1 2 --remote backup",
		ValidArgsFunction: h.Complete,
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) error {
			for _, name := range args {
				_, _, id, err := h.Checkpoint(ctx, name)
				if err != nil {
					return err
				}
				req.Checkpoints = append(req.Checkpoints, id)
			}
			list, err := client.Push(ctx, app, req)
			if err != nil {
				return err
			}
			return printList(h.Out, list)
		}),
	}
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "wait until they are there")
	cmd.Flags().StringVar(&req.Remote, "remote", "", "only to the remote `NAME`")
	cmd.Flags().BoolVar(&req.TakeOver, "take-over", false, "make this host the one that writes to the remote, and another one stop")
	return h.Lasting(cmd)
}

const fetchLong = `Bring a checkpoint that is on a remote alone to this host, where it can be restored like any
other. CP is an id, or the beginning of one: mulligan list shows those that are on a remote
alone. FILE is the identity of one of the remote's recipients: this host cannot read what it
sent. A checkpoint that is here already is left as it is. One that is brought is the newest
here, with the time at which it came; its notes say on which host and when it was made.

In a pipe, the field is: the checkpoint's id.`

// NewFetch returns the command fetch.
func NewFetch(h Host) *cobra.Command {
	var file, remote string
	cmd := &cobra.Command{
		Use:     "fetch CP",
		Short:   "Bring a checkpoint from a remote to this host",
		Long:    fetchLong,
		Example: "  mulligan fetch cp-4f2a --identity shop.key",
		Args:    h.args(1, 1),
		RunE: h.about(func(ctx context.Context, client *ipc.Client, app string, args []string) error {
			cp, err := fetch(ctx, client, app, ipc.FetchRequest{Checkpoint: ipc.CheckpointID(args[0]), Remote: remote}, file)
			if err != nil {
				return err
			}
			if h.Out.JSON {
				return h.Out.PrintJSON(cp)
			}
			h.Out.Println(string(cp.ID))
			return nil
		}),
	}
	addIdentity(cmd, &file)
	cmd.Flags().StringVar(&remote, "remote", "", "only from the remote `NAME`")
	return h.Lasting(cmd)
}

func addIdentity(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "identity", "", "the `FILE` of an identity, as mulligan remote key new wrote it")
}

// readIdentity reads the file of --identity.
func readIdentity(op, file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", &errs.Error{Kind: errs.Invalid, Op: op, Err: err, Hint: "name the file of the remote's identity: --identity FILE"}
	}
	return string(text), nil
}

func fetch(ctx context.Context, client *ipc.Client, app string, req ipc.FetchRequest, file string) (cp ipc.Checkpoint, err error) {
	if req.Identity, err = readIdentity("fetch", file); err == nil {
		cp, err = client.Fetch(ctx, app, req)
	}
	return cp, err
}

// WithFetch makes cmd, which takes a checkpoint as its argument, a command that fetches it first if an identity is named. It returns cmd.
func (h Host) WithFetch(cmd *cobra.Command) *cobra.Command {
	var file string
	run := cmd.RunE
	addIdentity(cmd, &file)
	cmd.Long = strings.Replace(cmd.Long, "\n\n", "\n\nWith --identity, a checkpoint that is on a remote alone is fetched first (mulligan fetch).\n\n", 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" {
			return run(cmd, args)
		}
		client, app, err := h.Target(cmd.Context())
		if err != nil {
			return err
		}
		cp, err := fetch(cmd.Context(), client, app, ipc.FetchRequest{Checkpoint: ipc.CheckpointID(args[0])}, file)
		if err != nil {
			return err
		}
		return run(cmd, []string{string(cp.ID)})
	}
	return cmd
}

const cloneLong = `Make an app on this host from a remote, and take it to a checkpoint: the newest, or the one
of --at. The host that sent it is not needed. FILE is the identity of one of the remote's
recipients.

DIR is the app's folder here, which must not exist, or be empty (default: the app's name).
The app keeps its settings, its command and the addresses of its databases; --db NAME=URL
has one of them elsewhere. What this host lacks is said before anything is changed.

What is restored is what the bucket says, and the app's command runs with its owner's
rights: clone only from a bucket whose writers you trust.

The app has the remote afterwards, and does not write to it unless --take-over is given.

In a pipe: the lines of mulligan rollback, and for each thing that the app lacks here
"lacks" and a sentence.`

// NewClone returns the command clone.
func NewClone(h Host) *cobra.Command {
	var s server
	var req ipc.CloneRequest
	var file, at string
	var dbs []string
	cmd := &cobra.Command{
		Use:     "clone s3://BUCKET/PREFIX [DIR]",
		Short:   "Make an app on this host from a remote",
		Long:    cloneLong,
		Example: "  mulligan clone s3://backups/mulligan --app shop --identity shop.key\n  mulligan clone s3://backups/mulligan ./shop --identity shop.key --at cp-4f2a --db main=postgres:///shop",
		Args:    h.args(1, 2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			const op = "clone"
			text, err := readIdentity(op, file)
			if err != nil {
				return err
			}
			for _, spec := range dbs {
				db, err := appfile.ParseDatabase(spec)
				if err != nil {
					return err
				}
				req.Databases = append(req.Databases, db)
			}
			req.URL, req.Identity, req.Source, req.Checkpoint = args[0], text, *h.App, ipc.CheckpointID(at)
			if req.Endpoint, req.Region, req.BucketKeys, err = s.place(); err != nil {
				return err
			}
			dir := cmp.Or(append(args, "")[1], req.Slug, req.Source)
			if dir == "" {
				return errs.New(errs.Invalid, op, "the app's folder is not known").WithHint("name it, or the app: `mulligan clone URL DIR`, or --app SLUG")
			}
			if req.Dir, err = folder(dir); err != nil {
				return errs.Wrap(errs.Invalid, op, err)
			}
			client, err := h.Start(cmd.Context())
			if err != nil {
				return err
			}
			res, err := client.Clone(cmd.Context(), req)
			return errs.Also(printClone(h.Out, res, err == nil), err)
		},
	}
	s.add(cmd)
	f := cmd.Flags()
	addIdentity(cmd, &file)
	f.StringVar(&at, "at", "", "the checkpoint to go to: an `ID` on the remote, or its beginning (default: the newest)")
	f.StringVar(&req.LogKey, "log-key", "", "refuse a log with another key than the one with this `NAME`, as mulligan remote show has it on the first host")
	f.StringVar(&req.Slug, "slug", "", "the app's short name here (default: as there)")
	f.StringVar(&req.Owner, "owner", "", "for root: the `USER` whose app it is (default: the one of that name there)")
	f.StringArrayVar(&dbs, "db", nil, "where a database is here (`NAME=URL`); may be repeated")
	f.BoolVar(&req.TakeOver, "take-over", false, "write to the remote from now on, and have the other host stop")
	f.BoolVar(&req.NoStart, "no-start", false, "do not start the app")
	f.BoolVar(&req.DryRun, "dry-run", false, "only say what would be made, and what this host lacks")
	return h.Lasting(cmd)
}

// folder returns the real path of a folder that may not exist.
func folder(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	around, err := filepath.EvalSymlinks(filepath.Dir(abs))
	return filepath.Join(around, filepath.Base(abs)), err
}

// printClone prints the receipt of a clone, as far as there is one.
func printClone(p *output.Printer, res ipc.CloneResult, done bool) error {
	if p.JSON {
		if !done && res.Rollback == nil {
			return nil
		}
		return p.PrintJSON(res)
	}
	for _, l := range res.Lacks {
		say(p, "lacks", l)
	}
	for _, w := range res.Warnings {
		say(p, "warning", w)
	}
	if res.DryRun && done && p.Terminal {
		p.Printf("%s of %s, made %s on %s, would become %s in %s\n", p.Text(string(res.Checkpoint)), p.Text(res.App.Slug), p.Time(res.MadeAt), p.Text(res.Host), p.Text(res.App.Slug), p.Text(res.App.Workspace))
	}
	if res.Rollback == nil {
		return nil
	}
	return p.PrintReceipt(res.Checkpoint, *res.Rollback)
}

func say(p *output.Printer, what, sentence string) {
	if p.Terminal {
		p.Println(p.Wrapped(fmt.Sprintf("%s: %s", p.Bold(what), output.Escape(sentence))))
		return
	}
	p.Printf("%s\t%s\n", what, p.Text(sentence))
}
