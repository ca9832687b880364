// Command vm is the demo of an app that lives in a virtual machine: a guest with
// a disk, a workspace with files, and a database. An agent breaks all three;
// mulligan takes them back together, forward into the failure, back again, and
// once more without a boot, from a checkpoint with the guest's memory. The guest
// is a real one under emulation, and so is its libvirtd, which is the demo's own.
// It ends with 0 only if every comparison held.
//
// Usage, as root: vm [--bin DIR], after `make build`; `make demo-vm` does both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mulligan/snap/disk/disktest"
)

// allowed is how long the whole demo may take; a guest boots in seconds, but
// on a busy machine in many.
const allowed = 15 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "the `folder` of the built programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends it at once
	ctx, cancel := context.WithTimeout(ctx, allowed)
	defer cancel()
	begin := time.Now()
	if err := perform(ctx, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo-vm: FAILED:", err)
		os.Exit(1)
	}
	fmt.Printf("\nEvery comparison held. %.1f s, and nothing is left behind.\n", time.Since(begin).Seconds())
}

func perform(ctx context.Context, bin string) (err error) {
	if why := disktest.Missing(); why != "" {
		return errors.New("no guest can be booted here: " + why + " (make deps, as root, installs what is needed)")
	}
	s, err := newStage(ctx, bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.clear()) }()
	if err = play(ctx, s); err != nil {
		s.showLog()
	}
	return err
}

func scene(title string) { fmt.Printf("\n── %s\n", title) }

// play plays the story.
func play(ctx context.Context, s *stage) error {
	scene("1. A guest boots, and a daemon looks after its app")
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.write("all is well"); err != nil {
		return err
	}

	scene("2. A checkpoint, while the guest runs")
	good, err := s.create(ctx, "--notes", "all is well")
	if err != nil {
		return err
	}
	if !good.Quiesced || good.VMSnapshotID == nil {
		return fmt.Errorf("the guest's filesystems were not frozen for it: %+v", good)
	}

	scene("3. An agent breaks it: the guest's disk, files and data")
	if err := s.write("all is lost"); err != nil {
		return err
	}

	scene("4. Back to the checkpoint")
	if err := s.goTo(ctx, "all is well", "rollback", string(good.ID)); err != nil {
		return err
	}

	scene("5. Forward into the failure, to look at it")
	if err := s.goTo(ctx, "all is lost", "redo"); err != nil {
		return err
	}

	scene("6. And back again")
	if err := s.goTo(ctx, "all is well", "rollback", string(good.ID)); err != nil {
		return err
	}

	scene("7. Once more, without a boot")
	if _, err := s.guest.Ask("sh echo not on any disk >/tmp/note", time.Minute); err != nil {
		return err
	}
	awake, err := s.create(ctx, "--with-memory", "--notes", "with memory")
	if err != nil {
		return err
	}
	if err := s.write("lost again"); err != nil {
		return err
	}
	if err := s.goTo(ctx, "all is well", "rollback", string(awake.ID)); err != nil {
		return err
	}
	note, err := s.guest.Ask("sh cat /tmp/note", time.Minute)
	if err != nil || note != "not on any disk|" {
		return fmt.Errorf("the guest was booted, and not resumed: it has %q, %w", note, err)
	}
	fmt.Println("   compared: what the guest had in memory is there, too")
	return nil
}
