package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// port is one TCP port that a child will listen on.
type port struct {
	flag     string // the flag that sets it, without dashes
	number   int    // 0: switched off
	required bool   // 0 is an error
	user     string // the child that listens on it
	fixed    bool   // the other servers of the cluster have decided it
}

// remedy says what to do if another process has the port.
func (p port) remedy() string {
	if p.fixed {
		return "end that process: all servers of a cluster have the same --" + p.flag
	}
	return "choose another port with --" + p.flag + ", or end that process"
}

// ports returns the ports on which this instance will listen. etcd has none: it listens on a socket in the run
// directory.
func (o *Options) ports() []port {
	var ports []port
	if !o.joined() {
		ports = []port{
			{flag: "apiserver-port", number: o.APIServerPort, required: !o.further(), user: childAPIServer, fixed: o.further()},
			{flag: "scheduler-port", number: o.SchedulerPort, user: childScheduler},
			{flag: "lifecycle-port", number: o.LifecyclePort, user: childLifecycle},
		}
	}
	if !o.NoControllerManager && !o.joined() {
		ports = append(ports, port{flag: "controller-manager-port", number: o.ControllerManagerPort,
			user: childControllerManager})
	}
	if o.Agent {
		ports = append(ports,
			port{flag: "agent-port", number: o.AgentPort, required: true, user: childAgent},
			port{flag: "agent-health-port", number: o.AgentHealthPort, user: childAgent},
		)
	}
	if o.has(childKubeProxy) {
		ports = append(ports,
			port{flag: "kube-proxy-port", number: o.KubeProxyPort, user: childKubeProxy},
			port{flag: "kube-proxy-health-port", number: o.KubeProxyHealthPort, user: childKubeProxy},
		)
	}
	return ports
}

// checkPorts tries every port and returns an error for all that other processes use. A port that one of our children
// uses (ours has their pids) is accepted: the child will be adopted or replaced.
func (o *Options) checkPorts(ours []int) error {
	var problems []error
	for _, p := range o.ports() {
		if p.number != 0 {
			problems = append(problems, o.checkPort(p, ours))
		}
	}
	return errors.Join(problems...)
}

// portRelease is how long a port may be in use while no process is found that uses it (chosen). The sockets of a killed
// process are closed last, after its memory was freed, and meanwhile the process cannot be found.
const portRelease = time.Second

func (o *Options) checkPort(p port, ours []int) error {
	doing := fmt.Sprintf("listen on %s port %d for %s", o.BindAddress, p.number, p.user)
	for deadline := time.Now().Add(portRelease); ; time.Sleep(pollPeriod) {
		listener, err := net.Listen("tcp", net.JoinHostPort(o.BindAddress, strconv.Itoa(p.number)))
		if err == nil {
			return listener.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s: %w (choose another with --%s or --bind-address)", doing, err, p.flag)
		}
		pid, name := portHolder(p.number)
		switch {
		case pid != 0 && slices.Contains(ours, pid):
			return nil
		case pid != 0:
			return fmt.Errorf("%s: in use by %s (pid %d): %s", doing, name, pid, p.remedy())
		case time.Now().After(deadline):
			return fmt.Errorf("%s: in use by another process: %s", doing, p.remedy())
		}
	}
}

// portHolder finds the process that listens on a TCP port; 0 if this user may not see it.
func portHolder(number int) (pid int, name string) {
	inodes := map[string]bool{}
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if f, err := os.Open(path); err == nil {
			for _, inode := range listeningInodes(bufio.NewScanner(f), number) {
				inodes["socket:["+inode+"]"] = true
			}
			f.Close()
		}
	}
	if len(inodes) == 0 {
		return 0, ""
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && inodes[target] {
			parts := strings.Split(link, "/")
			pid, _ := strconv.Atoi(parts[2])
			return pid, processName(pid)
		}
	}
	return 0, ""
}

// processName returns the program of a process and, for programs with verbs such as ours, the verb.
func processName(pid int) string {
	words, err := procfs.Default.Arguments(pid)
	if err != nil || len(words) == 0 || words[0] == "" {
		return "a process without a command line"
	}
	name := filepath.Base(words[0])
	if len(words) > 1 && words[1] != "" && !strings.HasPrefix(words[1], "-") {
		name += " " + words[1]
	}
	return name
}

// listeningInodes reads the format of proc_net_tcp: local address as HEX-IP:HEX-PORT in column 2, state in column 4,
// where 0A is LISTEN, and the socket's inode in column 10.
func listeningInodes(lines *bufio.Scanner, number int) (inodes []string) {
	suffix := fmt.Sprintf(":%04X", number)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) >= 10 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
