// Command metrics-server is the metrics-server project's program, which serves the API metrics.k8s.io that `kubectl
// top` and autoscalers ask. The module addons is separate so that its dependencies do not become ours. `make images`
// builds it into bin/images/metrics-server.tar, and `plimsoll up` runs it as a Deployment.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

func main() {
	os.Exit(cli.Run(app.NewMetricsServerCommand(genericapiserver.SetupSignalHandler())))
}
