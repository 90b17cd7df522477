// Command driver is test/csidriver as a program. It prints the result of each registration on a line: "registered", or
// "refused: " and the reason. It reads commands from standard input, one per line: "max N" changes its limit of
// volumes, "name NAME" its name, "register" makes its registration socket again, "unregister" removes it. It ends with
// its standard input, so that it does not outlive its test.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/test/csidriver"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("dir", "/var/lib/kubelet/plugins", "directory of the driver's own socket")
	registry := flag.String("registry", "/var/lib/kubelet/plugins_registry", "directory of its registration socket")
	topology := flag.String("topology", "", "key=value,...")
	a := csidriver.Answers{}
	flag.StringVar(&a.Name, "name", "csi.example.com", "name")
	flag.StringVar(&a.NodeID, "node-id", "", "this node's name in the storage system")
	flag.Int64Var(&a.VolumesMax, "max", 0, "how many volumes the node takes; 0: no limit")
	flag.Parse()
	if *topology != "" {
		a.Topology = map[string]string{}
		for _, pair := range strings.Split(*topology, ",") {
			key, value, _ := strings.Cut(pair, "=")
			a.Topology[key] = value
		}
	}
	d, err := csidriver.Start(*dir, *registry, a)
	if err != nil {
		return err
	}
	go func() {
		for told := range d.Told {
			if told == "" {
				fmt.Println("registered")
			} else {
				fmt.Println("refused:", told)
			}
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		if err := command(d, verb, rest); err != nil {
			fmt.Fprintln(os.Stderr, "driver:", err)
		}
	}
	return nil
}

func command(d *csidriver.Driver, verb, rest string) error {
	switch verb {
	case "max":
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return err
		}
		d.Set(func(a *csidriver.Answers) { a.VolumesMax = n })
	case "name":
		d.Set(func(a *csidriver.Answers) { a.Name = rest })
	case "register":
		return d.Register()
	case "unregister":
		return d.Unregister()
	default:
		return fmt.Errorf("%q: want max, name, register or unregister", verb)
	}
	return nil
}
