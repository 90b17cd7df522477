// Command upstream-kubelet is the kubelet as its project publishes it, to be measured beside plimsoll agent.
//
// None of its behaviour is changed here: it is the published module's command, with the imports that register what
// upstream's own main registers. That makes the comparison one of two agents, not of two builds: same compiler, same
// flags, same machine.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
