package virt

import (
	"strings"
	"testing"
)

const definition = `<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>x</name><!-- <disk><source file='/no'/></disk> -->
  <devices>
    <disk type='file' device='disk'>
      <source file='/old/a' index='1'><seclabel model='dac' relabel='no'/></source>
      <backingStore type='file'><source file='/old/base'/></backingStore>
      <target dev='vda'/><unknown keep='me'/>
    </disk>
    <disk type='file' device='cdrom'><source file='/iso'/><target dev='sda'/></disk>
    <disk type='file'><target dev="vdb"/><source startupPolicy='x' file="/old/b"/></disk>
  </devices>
  <qemu:commandline><qemu:arg value='-x'/></qemu:commandline>
</domain>`

// Only the images change: every other byte stays.
func TestRedirect(t *testing.T) {
	got, err := Redirect(definition, map[string]string{"vda": "/new/a&b's", "vdb": "/new/b"})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer(
		"'/old/a'", "'/new/a&amp;b&#39;s'",
		"<backingStore type='file'><source file='/old/base'/></backingStore>", "",
		`"/old/b"`, "'/new/b'",
	).Replace(definition)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := Redirect(definition, map[string]string{"vdz": "/x"}); err == nil {
		t.Error("a disk that is not there was redirected")
	}
}
