package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the database/sql driver

	"mulligan/ipc"
	"mulligan/snap/disk/disktest"
)

// stage is what the story is played on.
type stage struct {
	bin    string // the built programs
	dir    string // everything that the demo writes is in here, or in the host's folder
	host   *disktest.Host
	guest  *disktest.Guest
	daemon *exec.Cmd
	ended  chan struct{} // closed when the daemon has
}

func newStage(ctx context.Context, bin string) (*stage, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mulligan-vm-")
	if err != nil {
		return nil, err
	}
	s := &stage{bin: bin, dir: dir}
	if s.host, err = disktest.Start(disktest.Options{}); err == nil {
		s.guest, err = s.host.MakeGuest("shop", disktest.GuestOptions{Disks: 2})
	}
	if err != nil {
		return nil, errors.Join(err, s.clear())
	}
	return s, nil
}

func (s *stage) workspace() string { return filepath.Join(s.dir, "shop") }

// open boots the guest, starts the daemon and registers the app.
func (s *stage) open(ctx context.Context) error {
	definition := filepath.Join(s.dir, "shop.xml")
	if err := errors.Join(os.Mkdir(s.workspace(), 0o755), os.WriteFile(definition, []byte(s.guest.XML), 0o600)); err != nil {
		return err
	}
	for _, args := range [][]string{{"define", definition}, {"start", s.guest.Name}} {
		fmt.Println("   $ virsh", strings.Join(args, " "))
		if _, err := s.run(ctx, "virsh", append([]string{"-q", "-c", s.host.URI}, args...)...); err != nil {
			return err
		}
	}
	if err := s.guest.Await(ctx); err != nil {
		return err
	}
	if err := s.write("nothing yet"); err != nil {
		return err
	}
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	_, err := s.mulligan(ctx, "app", "add", "--slug", "shop", "--dir", s.workspace(), "--domain", s.guest.Name, "--uri", s.host.URI, "--db", "sqlite:shop.db")
	return err
}

func (s *stage) startDaemon(ctx context.Context) error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close() // the daemon has its own descriptor
	s.daemon = exec.Command(filepath.Join(s.bin, "mulligand"), "--user", "--state-dir", filepath.Join(s.dir, "state"), "--socket", s.socket())
	s.daemon.Env, s.daemon.Stdout, s.daemon.Stderr = s.environ(), log, log
	s.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo
	if err := s.daemon.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		_ = s.daemon.Wait() // how it ended is in its log
		close(s.ended)
	}()
	limit := time.After(time.Minute)
	for {
		_, err := s.run(ctx, filepath.Join(s.bin, "mulligan"), "status")
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return errors.New("mulligand ended")
		case <-limit:
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *stage) socket() string { return filepath.Join(s.dir, "mulligan.sock") }

// environ keeps our programs away from the configuration of whoever runs the demo.
func (s *stage) environ() []string {
	return append(os.Environ(), "MULLIGAN_SOCKET="+s.socket(), "MULLIGAN_STATE_DIR=", "XDG_CONFIG_HOME="+s.dir)
}

// mulligan runs the client and shows the command.
func (s *stage) mulligan(ctx context.Context, args ...string) (string, error) {
	fmt.Println("   $ mulligan", strings.Join(args, " "))
	return s.run(ctx, filepath.Join(s.bin, "mulligan"), append([]string{"--json"}, args...)...)
}

func (s *stage) run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, complaint bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, s.environ(), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

func (s *stage) create(ctx context.Context, args ...string) (cp ipc.Checkpoint, err error) {
	began := time.Now()
	out, err := s.mulligan(ctx, append([]string{"create", "--app", "shop"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &cp)
	}
	if err == nil {
		fmt.Printf("   %s in %.2f s; the guest's filesystems were frozen for a moment: %t\n", cp.ID, time.Since(began).Seconds(), cp.Quiesced)
	}
	return cp, err
}

// goTo takes the app to another state and compares all of it.
func (s *stage) goTo(ctx context.Context, want string, args ...string) error {
	began := time.Now()
	out, err := s.mulligan(ctx, append(args, "--app", "shop")...)
	if err != nil {
		return err
	}
	var res ipc.RollbackResult
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		return err
	}
	var stages []string
	for _, st := range res.Stages {
		stages = append(stages, fmt.Sprintf("%s %s %d ms", st.Stage, st.Status, st.DurationMS))
	}
	fmt.Printf("   %.2f s: %s\n", time.Since(began).Seconds(), strings.Join(stages, ", "))
	if err := s.guest.Await(ctx); err != nil {
		return err
	}
	for _, place := range s.places() {
		if got, err := place.read(); err != nil || got != want {
			return fmt.Errorf("%s says %q, and should say %q: %w", place.name, got, want, err)
		}
	}
	fmt.Printf("   compared: both of the guest's disks, the file and the row say %q\n", want)
	return nil
}

// place is something that holds the app's state.
type place struct {
	name  string
	read  func() (string, error)
	write func(string) error
}

func (s *stage) places() []place {
	file := filepath.Join(s.workspace(), "state.txt")
	return []place{
		{"the guest", s.readGuest, func(text string) error {
			_, err := s.guest.Ask("set "+text, time.Minute)
			return err
		}},
		{"the file", func() (string, error) {
			b, err := os.ReadFile(file)
			return string(b), err
		}, func(text string) error { return os.WriteFile(file, []byte(text), 0o644) }},
		{"the database", s.readRow, s.writeRow},
	}
}

// readGuest reads what both disks say, as far as they say the same.
func (s *stage) readGuest() (string, error) {
	answer, err := s.guest.Ask("get", time.Minute)
	half := len(answer) / 2
	if err == nil && answer != answer[:half]+" "+answer[:half] {
		err = fmt.Errorf("its disks differ: %q", answer)
	}
	return answer[:half], err
}

func (s *stage) database() (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+filepath.Join(s.workspace(), "shop.db")+"?_pragma=busy_timeout(10000)")
}

func (s *stage) readRow() (text string, err error) {
	db, err := s.database()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.QueryRow(`SELECT state FROM shop`).Scan(&text)
	return text, err
}

func (s *stage) writeRow(text string) (err error) {
	db, err := s.database()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.Exec(`DROP TABLE IF EXISTS shop; CREATE TABLE shop (state TEXT); INSERT INTO shop VALUES (?)`, text)
	return err
}

// write puts everything into a state.
func (s *stage) write(text string) error {
	for _, p := range s.places() {
		if err := p.write(text); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	fmt.Printf("   the guest's disks, a file and a row now say %q\n", text)
	return nil
}

func (s *stage) showLog() {
	if log, err := os.ReadFile(filepath.Join(s.dir, "log")); err == nil {
		fmt.Fprintf(os.Stderr, "\nthe daemon's last words:\n%s", log[max(0, len(log)-4000):])
	}
}

// clear ends the daemon, the guest and libvirtd, and removes the folders.
func (s *stage) clear() error {
	var all []error
	if s.guest != nil {
		s.guest.HangUp()
	}
	if s.daemon != nil && s.daemon.Process != nil {
		_ = s.daemon.Process.Signal(syscall.SIGTERM) // it may be gone already
		select {
		case <-s.ended:
		case <-time.After(time.Minute):
			_ = s.daemon.Process.Kill()
			<-s.ended
		}
	}
	if s.host != nil {
		all = append(all, s.host.Close())
	}
	return errors.Join(append(all, os.RemoveAll(s.dir))...)
}
