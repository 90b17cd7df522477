// Command plugin is test/deviceplugin as a program. It logs each call to standard output and reads commands from
// standard input, one per line: "unhealthy ID", "healthy ID", "devices LIST". It ends with its standard input, so that
// it does not outlive its test.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/plimsoll-dev/plimsoll/test/deviceplugin"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run() error {
	var c deviceplugin.Config
	flag.StringVar(&c.Dir, "dir", "/var/lib/kubelet/device-plugins", "directory of kubelet.sock")
	flag.StringVar(&c.Resource, "resource", "example.com/gpu", "resource to serve")
	flag.StringVar(&c.Env, "env", "", "variable that tells containers their devices")
	flag.BoolVar(&c.Nodes, "nodes", false, "give containers a device node for each device")
	flag.BoolVar(&c.PreStart, "prestart", false, "be told of every start")
	flag.StringVar(&c.CDI, "cdi", "", "kind of CDI devices")
	devices := flag.String("devices", "gpu0@0,gpu1@0", "ids, with their NUMA nodes: gpu0@0,gpu1@0+1,gpu2")
	prefer := flag.String("prefer", "", "ids in the order of preference")
	mount := flag.String("mount", "", "host path to mount read-only: host:container")
	flag.Parse()
	var err error
	if c.Devices, err = deviceplugin.ParseDevices(*devices); err != nil {
		return err
	}
	if *prefer != "" {
		c.Prefer = strings.Split(*prefer, ",")
	}
	if host, inside, ok := strings.Cut(*mount, ":"); ok {
		c.Mounts = map[string]string{inside: host}
	}
	c.Log = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	p := deviceplugin.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		commands(p)
		cancel()
	}()
	return p.Run(ctx)
}

// commands executes commands from standard input until it ends.
func commands(p *deviceplugin.Plugin) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "healthy", "unhealthy":
			p.SetHealth(rest, verb == "healthy")
		case "devices":
			devices, err := deviceplugin.ParseDevices(rest)
			if err != nil {
				fmt.Fprintln(os.Stderr, "plugin:", err)
				continue
			}
			p.Set(devices)
		}
	}
}
