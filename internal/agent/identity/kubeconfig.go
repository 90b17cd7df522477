package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// writeKubeconfig writes the kubeconfig of a node: the API server and the authority of the bootstrap kubeconfig, and
// the pair in a file that is replaced at each renewal. Names in it are those that the kubelet writes.
func writeKubeconfig(path string, bootstrap *rest.Config, pair string) error {
	pair, err := filepath.Abs(pair)
	if err != nil {
		return err
	}
	cluster := &clientcmdapi.Cluster{
		Server:                   bootstrap.Host,
		TLSServerName:            bootstrap.ServerName,
		InsecureSkipTLSVerify:    bootstrap.Insecure,
		CertificateAuthority:     bootstrap.CAFile,
		CertificateAuthorityData: bootstrap.CAData,
	}
	if cluster.CertificateAuthority != "" {
		cluster.CertificateAuthorityData = nil
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: pair, ClientKey: pair}},
		Contexts: map[string]*clientcmdapi.Context{"default-context": {
			Cluster:   "default-cluster",
			AuthInfo:  "default-auth",
			Namespace: "default",
		}},
		CurrentContext: "default-context",
	})
	if err != nil {
		return fmt.Errorf("write kubeconfig: %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if _, err := durable.WriteIfChanged(path, text); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// loadBootstrap reads the bootstrap kubeconfig.
func loadBootstrap(path string) (*rest.Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf("read bootstrap kubeconfig: %w: create a token in the cluster (kubeadm token create) and write "+
				"a kubeconfig with it there, or put the node's own kubeconfig in place", err)
	}
	config, err := kube.LoadKubeconfig(path)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return config, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
