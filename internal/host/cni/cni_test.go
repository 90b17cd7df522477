package cni

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const previous = `{"cniVersion":"1.0.0","ips":[{"address":"fd00::5/64"},{"address":"10.85.0.5/16"}]}`

func configWith(ports string) string {
	return `{"cniVersion":"1.0.0","name":"n","type":"plimsoll-hostport","bridge":"b0","runtimeConfig":{"portMappings":[` +
		ports + `]},"prevResult":` + previous + `}`
}

// TestRun makes the plugin's calls with a recorded kernel.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, command, owner, config string
		broken                       error // the kernel's answer
		code                         int
		out                          string // all of it, or with a leading ~ a part
		kernel                       string
	}{
		{"no ports costs nothing", "ADD", "c1", configWith(""), nil, 0, previous, ""},
		{
			"ports are opened after old ones are closed", "ADD", "c1",
			configWith(`{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},{"hostPort":0,"containerPort":1,"protocol":"tcp"}`),
			nil, 0, previous, "close b0 c1; open b0 c1 [{tcp invalid IP 8080 10.85.0.5 80} {udp 192.0.2.1 53 10.85.0.5 5353}]; ",
		},
		{"IPv6 host addresses are none of this network's", "ADD", "c1",
			configWith(`{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"::"}`), nil, 0, previous,
			"close b0 c1; open b0 c1 []; "},
		{"delete", "DEL", "c1", `{"bridge":"b0"}`, nil, 0, "", "close b0 c1; "},
		{"check", "CHECK", "c1", configWith(""), nil, 0, "", ""},
		{"version", "VERSION", "", "", nil, 0, `~"1.0.0"]`, ""},
		{"bad address", "ADD", "c1", configWith(`{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"x"}`), nil, 1,
			`~"code":7`, ""},
		{"first in the chain", "ADD", "c1", `{"runtimeConfig":{"portMappings":[{"hostPort":1}]},"prevResult":{}}`, nil, 1,
			"~no IPv4 address", ""},
		{"no container", "ADD", "", configWith(""), nil, 1, `~"code":4`, ""},
		{"not JSON", "ADD", "c1", "{", nil, 1, "~read configuration", ""},
		{"unknown command", "DANCE", "c1", "{}", nil, 1, `~CNI_COMMAND \"DANCE\"`, ""},
		{"the kernel's no", "DEL", "c1", `{"bridge":"b0"}`, errors.New("no"), 1, `~"code":999,"msg":"plimsoll-hostport: no"`,
			"close b0 c1; "},
	} {
		var out, did strings.Builder
		k := kernel{
			open: func(bridge, owner string, ports []nat.Port) error {
				fmt.Fprintf(&did, "open %s %s %v; ", bridge, owner, ports)
				return c.broken
			},
			close: func(bridge, owner string) error {
				fmt.Fprintf(&did, "close %s %s; ", bridge, owner)
				return c.broken
			},
		}
		env := map[string]string{"CNI_COMMAND": c.command, "CNI_CONTAINERID": c.owner}
		code := run(func(name string) string { return env[name] }, strings.NewReader(c.config), &out, k)
		part, loose := strings.CutPrefix(c.out, "~")
		if code != c.code || !loose && out.String() != part || loose && !strings.Contains(out.String(), part) ||
			did.String() != c.kernel {
			t.Errorf("%s: exit code %d, output %s, kernel %q; want %d, %s, %q", c.name, code, out.String(), did.String(), c.code,
				c.out, c.kernel)
		}
	}
}

func FuzzRun(f *testing.F) {
	cost.Attack(f, "ADD", configWith(`{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`))
	f.Fuzz(func(t *testing.T, command, config string) {
		defer cost.Spend(t, len(command)+len(config))()
		var out strings.Builder
		k := kernel{open: func(string, string, []nat.Port) error { return nil },
			close: func(string, string) error { return nil }}
		env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c"}
		if run(func(name string) string { return env[name] }, strings.NewReader(config), &out, k) != 0 &&
			!strings.Contains(out.String(), `"msg"`) {
			t.Errorf("a failure without a message: %q", out.String())
		}
	})
}
