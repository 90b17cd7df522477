// Command plimsoll-controlplane is the upstream programs of a Kubernetes control plane in one file: kube-apiserver,
// kube-controller-manager, kube-proxy, etcd, etcdctl, etcdutl and kubectl, each as its project publishes it. The name
// under which it is started, or the first argument, selects the program.
//
//	plimsoll-controlplane kube-apiserver --etcd-servers=...
//	ln -s plimsoll-controlplane kubectl && ./kubectl get nodes
//
// They are in one file because they share most of their code: 130 MB together, 300 MB as separate files. Each still
// runs as a process of its own. Their behaviour is not changed here, and no flag is added: `plimsoll up` sets what it
// needs by their flags. So an upgrade of Kubernetes only changes version numbers in go.mod and the Makefile.
//
// This is a separate module so that no other program of Plimsoll ever links k8s.io/kubernetes.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones, on machines without zoneinfo

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
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
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

// exitUsage is the exit code for bad usage, as in the other programs of Plimsoll.
const exitUsage = 2

// program is one of the programs. run runs it with os.Args and returns its exit code.
type program struct {
	name string
	run  func() int
}

var programs = []program{
	{"etcd", func() int { etcdmain.Main(os.Args); return 0 }},
	{"etcdctl", runEtcdctl},
	{"etcdutl", runEtcdutl},
	{"kube-apiserver", func() int { return cli.Run(apiserver.NewAPIServerCommand()) }},
	{"kube-controller-manager", func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) }},
	{"kube-proxy", func() int { return cli.Run(proxy.NewProxyCommand()) }},
	{"kubectl", runKubectl},
}

// runEtcdctl lets etcdctl take the beginnings of commands' names, as its own program does. Its package switches that on
// for all programs in the file.
func runEtcdctl() int {
	cobra.EnablePrefixMatching = true
	ctlv3.MustStart()
	return 0
}

// runEtcdutl has the commands of etcdutl, whose own main package cannot be imported.
func runEtcdutl() int {
	c := &cobra.Command{Use: "etcdutl", Short: "An administrative command line tool for etcd3."}
	c.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple",
		"set the output format (fields, json, protobuf, simple, table)")
	c.AddCommand(etcdutl.NewDefragCommand(), etcdutl.NewSnapshotCommand(), etcdutl.NewHashKVCommand(),
		etcdutl.NewVersionCommand(), etcdutl.NewMigrateCommand())
	if err := c.Execute(); err != nil {
		return 1
	}
	return 0
}

// runKubectl prints errors as kubectl does, without cobra's usage text and prefix.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // it prints the error and exits with kubectl's code
	}
	return 0
}

func main() {
	p, args, ok := choose(os.Args)
	if !ok {
		os.Exit(usage(os.Stdout, os.Stderr, os.Args))
	}
	os.Args = args
	cobra.EnablePrefixMatching = false // see runEtcdctl
	os.Exit(p.run())
}

// choose returns the program that args select, with its arguments. The name under which the file was started counts
// first, so that a symbolic link named kubectl can get an argument "etcd".
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

// usage handles a call that selects no program, and returns the exit code. A request for help is not an error.
func usage(stdout, stderr io.Writer, args []string) int {
	names := make([]string, len(programs))
	for i, p := range programs {
		names[i] = p.name
	}
	text := fmt.Sprintf("usage: plimsoll-controlplane PROGRAM [ARGUMENT...]\n       PROGRAM is one of: %s\n",
		strings.Join(names, ", "))
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
