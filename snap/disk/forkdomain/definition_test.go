package forkdomain

import (
	"regexp"
	"strings"
	"testing"

	"mulligan/errs"
)

const someDomain = `<domain type='kvm' id='7'>
  <name>shop</name>
  <uuid>11111111-1111-4111-8111-111111111111</uuid>
  <genid>22222222-2222-4222-8222-222222222222</genid>
  <metadata><app:x xmlns:app='http://example.org/'>kept</app:x></metadata>
  <memory unit='KiB'>262144</memory>
  <vcpu placement='static'>2</vcpu>
  <sysinfo type='smbios'><system><entry name='uuid'>11111111-1111-4111-8111-111111111111</entry></system></sysinfo>
  <os><type arch='x86_64' machine='q35'>hvm</type><loader readonly='yes' type='pflash'>/usr/share/OVMF.fd</loader><nvram template='/usr/share/VARS.fd'>/var/lib/libvirt/qemu/nvram/shop_VARS.fd</nvram></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/images/a.qcow2' index='2'/><backingStore type='file' index='3'><format type='qcow2'/><source file='/images/base.qcow2'/><backingStore/></backingStore><target dev='vda' bus='virtio'/><alias name='virtio-disk0'/></disk>
    <disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='/images/seed.iso'/><target dev='sda' bus='sata'/><readonly/></disk>
    <controller type='pci' index='1' model='pcie-root-port'><model name='pcie-root-port'/><target chassis='1' port='0x8'/></controller>
    <interface type='network'><mac address='52:54:00:00:00:01'/><source network='default' portid='x' bridge='virbr0'/><target dev='vnet3'/><model type='virtio'/><alias name='net0'/></interface>
    <interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br0'/><vlan><tag id='42'/></vlan><filterref filter='clean-traffic'/><model type='virtio'/></interface>
    <interface type='user'><mac address='52:54:00:00:00:03'/><model type='virtio'/></interface>
    <serial type='pty'><source path='/dev/pts/5'/><log file='/var/log/shop.log' append='off'/><target type='isa-serial' port='0'/></serial>
    <console type='pty' tty='/dev/pts/5'><source path='/dev/pts/5'/><target type='serial' port='0'/></console>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <channel type='unix'><source mode='bind' path='/srv/shop/run/guest.sock'/><target type='virtio' name='app.0'/></channel>
    <channel type='unix'><source mode='bind' path='/run/other.sock'/><target type='virtio' name='app.1'/></channel>
    <graphics type='vnc' port='5901' autoport='no' listen='127.0.0.1'><listen type='address' address='127.0.0.1'/></graphics>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <vsock model='virtio'><cid auto='no' address='5'/></vsock>
  </devices>
  <seclabel type='dynamic' model='dac' relabel='yes'><label>+64055:+64055</label></seclabel>
</domain>`

func someIdentity() identity {
	return identity{
		name: "shop-fork-1", uuid: "33333333-3333-4333-8333-333333333333", nvram: "/pool/vars", images: map[string]string{"vda": "/pool/a.qcow2"},
		path: func(p string) string { return p + ".fork" },
	}
}

// TestForked gives a domain with much a fork's identity: what only one domain may have is another, and all else is as it was.
func TestForked(t *testing.T) {
	t.Parallel()
	text, err := forked(someDomain, someIdentity())
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{
		"1111-1111", "2222-2222", "<name>shop</name>", "id=\"7\"", "/images/a.qcow2", "base.qcow2", "nvram/shop_VARS", "00:00:00:0", "vnet3", "virbr0", "br0", "clean-traffic", "<tag",
		"/dev/pts", "\"/srv/shop/run/guest.sock\"", "\"/run/other.sock\"", "\"/var/log/shop.log\"", "port=\"5901\"", "address=\"5\"", "+64055",
	} {
		if strings.Contains(text, gone) {
			t.Errorf("the fork still has %s", gone)
		}
	}
	for _, there := range []string{
		"<name>shop-fork-1</name>", "<uuid>33333333", "/pool/a.qcow2", "/images/seed.iso", ">/pool/vars<", "OVMF.fd", "template=\"/usr/share/VARS.fd\"", "kept",
		"/srv/shop/run/guest.sock.fork", "/run/other.sock.fork", "/var/log/shop.log.fork", "org.qemu.guest_agent.0", "/dev/urandom", "autoport=\"yes\"", "auto=\"yes\"", `<entry name="uuid">33333333`,
	} {
		if !strings.Contains(text, there) {
			t.Errorf("the fork lacks %s:\n%s", there, text)
		}
	}
	if n := strings.Count(text, `type="ethernet"`); n != 2 {
		t.Errorf("%d cards are connected to nothing", n)
	}
	again, err := forked(someDomain, someIdentity())
	if err != nil || cards(again) != cards(text) {
		t.Errorf("a second time the fork is another one: %v", err)
	}
}

// cards are the addresses of a domain's network cards.
func cards(text string) string {
	return strings.Join(regexp.MustCompile(`mac address="[^"]*"`).FindAllString(text, -1), " ")
}

// TestNotForked refuses what two domains cannot both have, and what would be lost.
func TestNotForked(t *testing.T) {
	t.Parallel()
	with := func(device string) string { return strings.Replace(someDomain, "</devices>", device+"</devices>", 1) }
	for what, text := range map[string]string{
		"<hostdev>":    with(`<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='6' slot='2' function='0'/></source></hostdev>`),
		"disk vdb":     with(`<disk type='file' device='disk' snapshot='no'><driver name='qemu' type='raw'/><source file='/images/b.raw'/><target dev='vdb' bus='virtio'/></disk>`),
		"<filesystem>": with(`<filesystem type='mount'><source dir='/srv/shop'/><target dir='shop'/></filesystem>`),
		"<shmem>":      with(`<shmem name='x'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>`),
		"<tpm>":        with(`<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>`),
		"network card": with(`<interface type='direct'><mac address='52:54:00:00:00:09'/><source dev='eth0' mode='bridge'/><model type='virtio'/></interface>`),
		"serial port":  with(`<serial type='tcp'><source mode='bind' host='127.0.0.1' service='4555'/><protocol type='raw'/><target port='1'/></serial>`),
		"same program": with(`<channel type='unix'><source mode='connect' path='/run/host.sock'/><target type='virtio' name='app.9'/></channel>`),
		"file":         with(`<audio id='2' type='file' path='/tmp/sound.wav'/>`),
		"for QEMU":     strings.Replace(strings.Replace(someDomain, "<domain type='kvm'", "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' type='kvm'", 1), "</domain>", "<qemu:commandline><qemu:arg value='-x'/></qemu:commandline></domain>", 1),
		"<devices/newdevice>, which mulligan does not know": with(`<newdevice><part x='1'/></newdevice>`),
	} {
		_, err := forked(text, someIdentity())
		if errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), what) || errs.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}
