package serving

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Where a cluster says whose client certificates its API server accepts, for servers beside it (upstream's names).
const (
	clusterCAName = "extension-apiserver-authentication"
	clusterCAKey  = "client-ca-file"
)

// clusterCAEvery is how often it is asked. Upstream watches the object; chosen: a rotation keeps both CAs for days.
const clusterCAEvery = time.Minute

// ClusterCA is the CA of client certificates that a cluster publishes, in the ConfigMap that upstream's components read
// where no --client-ca-file is given. The zero ClusterCA knows none.
type ClusterCA struct {
	pool atomic.Pointer[x509.CertPool]
}

// Pool is the CA as it was last heard; nil: none was.
func (c *ClusterCA) Pool() *x509.CertPool { return c.pool.Load() }

// Read asks once.
func (c *ClusterCA) Read(ctx context.Context, client *kube.Client) error {
	var m corev1.ConfigMap
	if err := client.Get(ctx, kube.ConfigMaps, metav1.NamespaceSystem, clusterCAName, &m); err != nil {
		return fmt.Errorf("read the CA of client certificates: configmap %s/%s: %w", metav1.NamespaceSystem, clusterCAName, err)
	}
	pool := x509.NewCertPool()
	if pem := m.Data[clusterCAKey]; !pool.AppendCertsFromPEM([]byte(pem)) {
		return fmt.Errorf("read the CA of client certificates: configmap %s/%s: %s: no PEM certificate in %d bytes",
			metav1.NamespaceSystem, clusterCAName, clusterCAKey, len(pem))
	}
	c.pool.Store(pool)
	return nil
}

// Follow asks again and again until ctx ends; what it heard last holds.
func (c *ClusterCA) Follow(ctx context.Context, client *kube.Client) {
	for said := false; ; {
		err := c.Read(ctx, client)
		if err != nil && ctx.Err() == nil && !said {
			slog.Warn("client certificates are not accepted; tokens are", "err", err)
		}
		said = err != nil
		select {
		case <-ctx.Done():
			return
		case <-time.After(clusterCAEvery):
		}
	}
}
