package cluster

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// All servers of a cluster have the same --apiserver-port. Each kube-apiserver writes its address into the one
// EndpointSlice of Service kubernetes, and that has one port for all addresses: with different ports each would replace
// the others', and pods and machines that joined would not find some of the servers. Two keys in etcd say what the
// other servers have. They are read before a kube-apiserver is started, and their format is kube-apiserver's.
const (
	// leasesKey begins the keys of the servers that run: each renews one with its address at the end, which lasts 15 s
	// (DefaultEndpointReconcilerTTL of k8s.io/kubernetes/pkg/controlplane).
	leasesKey = "/registry/masterleases/"
	// serversKey is the EndpointSlice.
	serversKey = "/registry/endpointslices/default/kubernetes"
)

// DefaultAPIServerPort is the port of kube-apiserver, unless an option says otherwise. It is also kubeadm's.
const DefaultAPIServerPort = 6443

// takePort sets the port of a further server, which is that of the other servers. shared is 0 if an older release has
// shared it; checkServerPort finds out then.
func (c *cluster) takePort(shared int) error {
	switch {
	case c.o.APIServerPort == 0 && shared == 0:
		c.o.APIServerPort = DefaultAPIServerPort
	case c.o.APIServerPort == 0:
		c.o.APIServerPort = shared
	case shared != 0 && c.o.APIServerPort != shared:
		return fmt.Errorf("--apiserver-port %d: the servers of this cluster have port %d, and all must have the same one: "+
			"leave the flag out", c.o.APIServerPort, shared)
	}
	return nil
}

// checkServerPort returns an error if other servers of the cluster run, and have another port.
func (c *cluster) checkServerPort(ctx context.Context) error {
	if !c.o.elects() {
		return nil
	}
	keys, err := c.readEtcd(ctx, leasesKey, "--prefix", "--keys-only")
	if err != nil {
		return err
	}
	others := otherServers(string(keys), c.o.advertiseAddress())
	if len(others) == 0 {
		return nil
	}
	slice, err := c.readEtcd(ctx, serversKey, "--print-value-only")
	if err != nil {
		return err
	}
	port, err := portOf(bytes.TrimSuffix(slice, []byte("\n")))
	if err != nil {
		return fmt.Errorf("read etcd at %s: %s: %w", strings.Join(c.o.EtcdServers, ","), serversKey, err)
	}
	if port == 0 || port == c.o.APIServerPort {
		return nil
	}
	return fmt.Errorf("--apiserver-port %d: the servers of this cluster have port %d, and all must have the same one: "+
		"give --apiserver-port %d; or, to change it, stop all of them first (those at %s run)", c.o.APIServerPort, port,
		port, strings.Join(others, ", "))
}

// movedFrom returns the URL at which other machines reached kube-apiserver before this start; empty: it is the same, or
// they could not reach it.
func (l layout) movedFrom() string {
	kept, err := Load(l.o)
	if err != nil || !kept.shared() || !l.o.shared() || kept.publicURL() == l.o.publicURL() {
		return ""
	}
	return kept.publicURL()
}

// noteMoved says what is to be done on machines that joined when kube-apiserver was at another URL: they do not find
// this one by themselves.
func (c *cluster) noteMoved(ctx context.Context, from string) {
	if from == "" {
		return
	}
	all := &corev1.NodeList{}
	local, err := c.knownNodes()
	var client *kube.Client
	if err == nil {
		client, err = c.client(whoLauncher)
	}
	if err == nil {
		err = client.List(ctx, kube.Nodes, "", metav1.ListOptions{}, all)
	}
	if err != nil {
		c.logger.Warn("which nodes have joined is not known", "err", err)
		return
	}
	if names := c.joinedNodes(all.Items, local); len(names) > 0 {
		c.sink.Show(progress.Event{Step: "server", Phase: progress.Note, Detail: fmt.Sprintf(
			"kube-apiserver was at %s, and is at %s now; machines that joined need to be told: on those of the nodes %s that "+
				"are no servers run `plimsoll down`, then `plimsoll join %s`, which needs no token", from, c.o.publicURL(),
			strings.Join(names, ", "), c.o.publicURL())})
	}
}

// joinedNodes returns the names of nodes that are on other machines than this one.
func (l layout) joinedNodes(all []corev1.Node, local []localNode) (names []string) {
	for i := range all {
		name := all[i].Name
		here := name == l.o.NodeName || strings.HasPrefix(name, hollowPrefix) ||
			slices.ContainsFunc(local, func(n localNode) bool { return n.name == name })
		if !here {
			names = append(names, name)
		}
	}
	return names
}

// otherServers returns the addresses of the servers that run, without this one. keys are those that begin with
// leasesKey, one a line.
func otherServers(keys, own string) (others []string) {
	for key := range strings.Lines(keys) {
		key = strings.TrimSpace(key)
		if address := path.Base(key); strings.HasPrefix(key, leasesKey) && address != own {
			others = append(others, address)
		}
	}
	return others
}

// protobufPrefix begins the objects that kube-apiserver keeps in etcd.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
var protobufPrefix = []byte("k8s\x00")

// portOf returns the port in an EndpointSlice as etcd has it; 0 if it has none, or there is no EndpointSlice.
func portOf(text []byte) (int, error) {
	if len(text) == 0 {
		return 0, nil
	}
	text, ok := bytes.CutPrefix(text, protobufPrefix)
	if !ok {
		return 0, fmt.Errorf("want an EndpointSlice in protobuf encoding, found %d bytes of something else", len(text))
	}
	object, slice := runtime.Unknown{}, discoveryv1.EndpointSlice{}
	if err := object.Unmarshal(text); err != nil {
		return 0, fmt.Errorf("read an object in protobuf encoding: %w", err)
	}
	if err := slice.Unmarshal(object.Raw); err != nil {
		return 0, fmt.Errorf("read an EndpointSlice: %w", err)
	}
	for _, p := range slice.Ports {
		if p.Port != nil {
			return int(*p.Port), nil
		}
	}
	return 0, nil
}
