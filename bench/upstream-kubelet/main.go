// Command upstream-kubelet is the kubelet as its project publishes it, for comparison with plimsoll agent.
//
// Its behaviour is not changed here: it is the published module's command, with the imports that upstream's own main
// registers. So two agents are compared, and not two builds: same compiler, same flags, same machine.
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
