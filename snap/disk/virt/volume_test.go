package virt

import (
	"strings"
	"testing"

	"mulligan/errs"
)

const onCeph = `<domain type='kvm'><name>x</name><devices>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='writeback'/>
      <auth username='vm'><secret type='ceph' uuid='7a0b7c2e-5a55-4a0e-9b0c-0e8a9d1c2b3a'/></auth>
      <source protocol='rbd' name='vms/a' index='2'><host name='ceph-1' port='6789'/><host name='ceph-2'/><config file='/etc/ceph/x.conf'/></source>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw'/>
      <source name="vms/team/b" protocol="rbd"/>
      <target dev='vdb' bus='virtio'/>
    </disk>
  </devices></domain>`

func TestVolumes(t *testing.T) {
	s, err := Inspect("test", onCeph)
	if err != nil {
		t.Fatal(err)
	}
	a := s.Volumes["vda"]
	if !s.OnCeph() || a.Image != "vms/a" || strings.Join(a.Monitors, " ") != "ceph-1:6789 ceph-2" || a.Config != "/etc/ceph/x.conf" || a.User != "vm" {
		t.Errorf("vda is %+v", a)
	}
	if b := s.Volumes["vdb"]; b.Image != "vms/team/b" || b.User != "" || len(b.Monitors) > 0 || s.Sources["vdb"] != b.Image {
		t.Errorf("vdb is %+v", b)
	}
	got, err := Redirect(onCeph, map[string]string{"vda": "vms/new-a", "vdb": "vms/team/new-b"})
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.NewReplacer("'vms/a'", "'vms/new-a'", `"vms/team/b"`, "'vms/team/new-b'").Replace(onCeph); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestVolumesRefused(t *testing.T) {
	for name, change := range map[string][2]string{
		"format":         {"type='raw' cache", "type='qcow2' cache"},
		"a snapshot":     {"<config file='/etc/ceph/x.conf'/>", "<snapshot name='s'/>"},
		"an option":      {"'vms/a'", "'vms/--id=admin'"},
		"another option": {"'vms/a'", "'-m/a'"},
		"a name with @":  {"'vms/a'", "'vms/a@s'"},
		"no pool":        {"'vms/a'", "'a'"},
		"four parts":     {"'vms/a'", "'a/b/c/d'"},
		"encryption":     {"<target dev='vda'", "<encryption format='luks'><secret type='passphrase' uuid='7a0b7c2e-5a55-4a0e-9b0c-0e8a9d1c2b3a'/></encryption><target dev='vda'"},
		"a file beside":  {"</devices>", "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/a'/><target dev='vdc'/></disk></devices>"},
	} {
		text := strings.Replace(onCeph, change[0], change[1], 1)
		if _, err := Inspect("test", text); text == onCeph || errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), "vda") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
