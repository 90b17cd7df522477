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

// Where a cluster publishes the CA of the client certificates that its API server accepts, for other servers
// (upstream's names).
const (
	clusterCAName = "extension-apiserver-authentication"
	clusterCAKey  = "client-ca-file"
)

// clusterCAEvery is how often the ConfigMap is read. Upstream watches the object. Chosen: a rotation keeps both CAs for
// days.
const clusterCAEvery = time.Minute

// ClusterCA is the CA of client certificates that a cluster publishes, in the ConfigMap that upstream's components read
// when there is no --client-ca-file. The zero ClusterCA has no CA.
type ClusterCA struct {
	pool atomic.Pointer[x509.CertPool]
}

// Pool returns the CA that was read last; nil: none was.
func (c *ClusterCA) Pool() *x509.CertPool { return c.pool.Load() }

// Read reads the ConfigMap once.
func (c *ClusterCA) Read(ctx context.Context, client *kube.Client) error {
	var m corev1.ConfigMap
	if err := client.Get(ctx, kube.ConfigMaps, metav1.NamespaceSystem, clusterCAName, &m); err != nil {
		return fmt.Errorf("read the CA of client certificates: configmap %s/%s: %w", metav1.NamespaceSystem, clusterCAName,
			err)
	}
	pool := x509.NewCertPool()
	if pem := m.Data[clusterCAKey]; !pool.AppendCertsFromPEM([]byte(pem)) {
		return fmt.Errorf("read the CA of client certificates: configmap %s/%s: %s: no PEM certificate in %d bytes",
			metav1.NamespaceSystem, clusterCAName, clusterCAKey, len(pem))
	}
	c.pool.Store(pool)
	return nil
}

// Follow reads the ConfigMap at intervals until ctx ends. After an error the CA that was read last stays in use.
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
