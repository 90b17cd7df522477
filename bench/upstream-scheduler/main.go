// Command upstream-scheduler is kube-scheduler as its project publishes it, for comparison with plimsoll scheduler.
//
// As in upstream-kubelet, its behaviour is not changed here: it is the published module's command, built by the same
// compiler with the same flags as everything else that is measured.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand()))
}
