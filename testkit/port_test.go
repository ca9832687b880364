package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestPortOfAnotherProcess has another process draw a port, which this one gets only after that one has ended.
func TestPortOfAnotherProcess(t *testing.T) {
	if os.Getenv("TEST_PORT") != "" {
		fmt.Println("port", Port(t))
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the other process has tried
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPortOfAnotherProcess$")
	cmd.Env = append(os.Environ(), "TEST_PORT=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Fscanf(out, "port %d\n", &port); err != nil {
		t.Error(err)
	}
	if taken, err := takePort(port); taken || err != nil {
		t.Errorf("the port of a process that runs: %v %v", taken, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if taken, err := takePort(port); !taken || err != nil {
		t.Errorf("the port of a process that has ended: %v %v", taken, err)
	}
	if taken, err := takePort(port); taken || err != nil {
		t.Errorf("this process's own port: %v %v", taken, err)
	}
}
