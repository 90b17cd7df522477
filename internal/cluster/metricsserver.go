package cluster

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// Metrics: metrics-server reads the agents' /metrics/resource and serves the API metrics.k8s.io, behind
// kube-apiserver's aggregation layer. The cluster's authority signs the certificates of both sides, so each verifies
// the other.

//go:embed metrics-server.yaml
var metricsManifest string

// addonMetrics is the name of the add-on, and of its Deployment and Service in kube-system.
const addonMetrics = "metrics-server"

// fillMetrics replaces the words in capitals of metrics-server.yaml.
func (l layout) fillMetrics() (*strings.Replacer, error) {
	words := []string{"IMAGE", image.MetricsServer}
	for _, f := range [][2]string{
		{"CERTIFICATE", pki.CertPath(l.pki(), certMetrics)},
		{"KEY", pki.KeyPath(l.pki(), certMetrics)},
		{"AUTHORITY", pki.CertPath(l.pki(), caCluster)},
	} {
		text, err := os.ReadFile(f[1])
		if err != nil {
			return nil, fmt.Errorf("install %s: %w", addonMetrics, err)
		}
		words = append(words, f[0], base64.StdEncoding.EncodeToString(text))
	}
	return strings.NewReplacer(words...), nil
}
