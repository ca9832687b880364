package guest

import (
	"context"
	"fmt"
	"time"

	"mulligan/snap/disk/virt"
)

// AfterPowerCut is the end of the warnings of captures without frozen filesystems.
const AfterPowerCut = " The disks are captured as after a power cut."

// Quiesce freezes the guest's filesystems through its agent, which may take up to limit. If that does not succeed, warning says why, and
// the capture continues without it. A thaw must follow in any case, because the guest may execute the freeze later.
func Quiesce(ctx context.Context, m virt.Machine, s virt.Survey, limit time.Duration) (quiesced bool, warning string) {
	switch {
	case !s.Agent:
		return false, "the domain has no channel for a guest agent." + AfterPowerCut
	case !s.Awake:
		return false, "no agent listens in the guest (install qemu-guest-agent)." + AfterPowerCut
	}
	ctx, cancel := context.WithTimeout(ctx, limit+time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.Freeze(limit) }()
	select {
	case err := <-done:
		if err == nil {
			return true, ""
		}
		return false, fmt.Sprintf("the guest agent did not freeze the filesystems: %v.%s", err, AfterPowerCut)
	case <-ctx.Done():
		return false, fmt.Sprintf("the guest agent did not answer within %s.%s", limit, AfterPowerCut)
	}
}

// Still determines whether the guest's filesystems are consistent on the disks of a domain that is off. They are if the guest shut down
// by itself. ran is whether the domain was seen running since its disks were last captured or restored.
func Still(m virt.Machine, ran bool) (still bool, warning string, err error) {
	ended, err := m.Ended()
	if err != nil {
		return false, "", err
	}
	switch {
	case ended == virt.ShutDown || ended == virt.EndUnknown && !ran:
		return true, "", nil
	case ended == virt.EndUnknown:
		return false, "libvirtd was restarted since the guest went down, so the cause is unknown." + AfterPowerCut, nil
	}
	return false, "the guest did not shut down: it was switched off, or its QEMU died." + AfterPowerCut, nil
}

// releaseEvery is the pause between attempts to let a guest go on that may stand still.
const releaseEvery = time.Second

// Release tries once a second to let a guest go on, by once, until that returns no error or life ends.
func Release(life context.Context, once func() error) {
	tick := time.NewTicker(releaseEvery)
	defer tick.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-tick.C:
		}
		if once() == nil {
			return
		}
	}
}
