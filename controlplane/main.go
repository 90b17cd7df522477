// Command plimsoll-controlplane is the upstream programs of a Kubernetes control plane in one file: kube-apiserver,
// kube-controller-manager, etcd and kubectl, each as its project publishes it, chosen by the name the file is called
// by or by the first argument.
//
//	plimsoll-controlplane kube-apiserver --etcd-servers=...
//	ln -s plimsoll-controlplane kubectl && ./kubectl get nodes
//
// One file because the four share most of their code: 130 MB together, 300 MB apart. They still run as one process
// each. None of their behaviour is changed here, and no flag is added: what `plimsoll up` wants different, it says on
// their command lines. That keeps an upgrade of Kubernetes a change of version numbers in go.mod and the Makefile.
//
// This is a module of its own so that nothing else of Plimsoll ever links k8s.io/kubernetes.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones, on machines without zoneinfo

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's credential plugins
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics in the components' /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// exitUsage is what the rest of Plimsoll exits with on bad usage.
const exitUsage = 2

// A program runs with os.Args as if it were alone in its file, and returns its exit code.
type program struct {
	name string
	run  func() int
}

var programs = []program{
	{"etcd", func() int { etcdmain.Main(os.Args); return 0 }},
	{"kube-apiserver", func() int { return cli.Run(apiserver.NewAPIServerCommand()) }},
	{"kube-controller-manager", func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) }},
	{"kubectl", runKubectl},
}

// runKubectl prints errors as kubectl does, without cobra's usage text and prefix.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits with kubectl's code
	}
	return 0
}

func main() {
	p, args, ok := choose(os.Args)
	if !ok {
		os.Exit(usage(os.Stdout, os.Stderr, os.Args))
	}
	os.Args = args
	os.Exit(p.run())
}

// choose finds the program that args ask for and the arguments it shall see. The name of the file decides if it is
// that of a program, so that a symbolic link named kubectl can be given an argument "etcd".
func choose(args []string) (program, []string, bool) {
	if len(args) == 0 {
		return program{}, nil, false
	}
	if p, ok := find(filepath.Base(args[0])); ok {
		return p, args, true
	}
	if len(args) > 1 {
		if p, ok := find(args[1]); ok {
			return p, args[1:], true
		}
	}
	return program{}, nil, false
}

func find(name string) (program, bool) {
	i := slices.IndexFunc(programs, func(p program) bool { return p.name == name })
	if i < 0 {
		return program{}, false
	}
	return programs[i], true
}

// usage answers a call that names no program and returns the exit code: asking for help is not an error.
func usage(stdout, stderr io.Writer, args []string) int {
	names := make([]string, len(programs))
	for i, p := range programs {
		names[i] = p.name
	}
	text := fmt.Sprintf("usage: plimsoll-controlplane PROGRAM [ARGUMENT...]\n       PROGRAM is one of: %s\n", strings.Join(names, ", "))
	switch {
	case len(args) < 2:
		fmt.Fprint(stderr, "plimsoll-controlplane: no program named\n", text)
	case args[1] == "help" || args[1] == "--help" || args[1] == "-h":
		fmt.Fprint(stdout, text)
		return 0
	default:
		fmt.Fprintf(stderr, "plimsoll-controlplane: unknown program %q\n%s", args[1], text)
	}
	return exitUsage
}
