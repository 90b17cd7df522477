package cluster

import (
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"os"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// who is an identity that a client has at the API server, and the name of its files.
type who string

const (
	// the user; the kubeconfig contains the credentials, so that it can be copied
	whoAdmin who = "admin"
	// `up` itself, which installs RBAC; the only identity that RBAC does not restrict
	whoLauncher          who = "launcher"
	whoControllerManager who = "controller-manager" // this and the following are components
	whoScheduler         who = "scheduler"
	whoLifecycle         who = "lifecycle"
	whoAgent             who = "agent"
	whoKubeProxy         who = "kube-proxy"
	whoFleet             who = "fleet"
	whoStorage           who = "storage"
)

// Names of the other certificates and keys.
const (
	caCluster = "ca" // signs all clients and servers of the cluster
	// signs clients that may act for another user; it must differ from the cluster's CA, or every client could
	caFrontProxy     = "front-proxy-ca"
	certAPIServer    = "apiserver"
	certKubelet      = "apiserver-kubelet-client"
	certFrontProxy   = "front-proxy-client"
	certCMServing    = "controller-manager-serving"
	certAgentServing = "agent-serving"
	certMetrics      = "metrics-server-serving"
	keyServiceTokens = "service-account"
)

// groupAdmins is bound to cluster-admin by our own binding, so that removing the binding revokes a leaked admin
// certificate. The rights of a member of system:masters cannot be revoked.
const groupAdmins = "plimsoll:cluster-admins"

// The users of our own components that upstream has no name for. The manifests in deploy bind them to roles.
const (
	userLifecycle = "plimsoll:lifecycle"
	userFleet     = "plimsoll:fleet"
	userStorage   = "plimsoll:storage"
)

// plan returns every key and certificate of the instance.
func (l layout) plan() pki.Plan {
	o := l.o
	client := func(w who, user, group string) pki.Leaf {
		return pki.Leaf{Name: string(w), Authority: caCluster, CommonName: user, Organization: group, Client: true}
	}
	var some []pki.Leaf
	if o.Hollow > 0 {
		some = append(some, client(whoFleet, userFleet, ""))
	}
	if o.has(childKubeProxy) {
		some = append(some, client(whoKubeProxy, "system:kube-proxy", ""))
	}
	if o.has(addonCSI) {
		some = append(some, client(whoStorage, userStorage, ""))
	}
	if o.has(addonMetrics) {
		some = append(some, pki.Leaf{Name: certMetrics, Authority: caCluster, CommonName: addonMetrics, Server: true,
			DNSNames: []string{addonMetrics + ".kube-system.svc", addonMetrics + ".kube-system.svc.cluster.local", "localhost"}})
	}
	advertised := net.ParseIP(o.advertiseAddress())
	return pki.Plan{
		Authorities: []pki.Authority{
			{Name: caCluster, CommonName: o.fullName() + " cluster authority", ManyChecks: true},
			{Name: caFrontProxy, CommonName: o.fullName() + " front proxy authority"},
		},
		Leaves: append([]pki.Leaf{
			{Name: certAPIServer, Authority: caCluster, CommonName: "kube-apiserver", Server: true,
				DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
					"kubernetes.default.svc.cluster.local", "localhost", o.NodeName},
				IPs: addresses(o.firstServiceIP(), net.ParseIP("127.0.0.1"), net.ParseIP("::1"), net.ParseIP(o.BindAddress),
					net.ParseIP(o.NodeIP), advertised)},
			{Name: certKubelet, Authority: caCluster, CommonName: "plimsoll:apiserver-kubelet-client", Client: true},
			{Name: certFrontProxy, Authority: caFrontProxy, CommonName: "front-proxy-client", Client: true},
			{Name: certCMServing, Authority: caCluster, CommonName: "kube-controller-manager", Server: true,
				DNSNames: []string{"localhost"}, IPs: addresses(net.ParseIP("127.0.0.1"), net.ParseIP("::1"),
					net.ParseIP(o.BindAddress), net.ParseIP(o.NodeIP))},
			{Name: certAgentServing, Authority: caCluster, CommonName: "system:node:" + o.NodeName, Organization: "system:nodes",
				Server:   true,
				DNSNames: []string{o.NodeName, "localhost"}, IPs: addresses(net.ParseIP("127.0.0.1"), net.ParseIP("::1"),
					net.ParseIP(o.NodeIP))},
			client(whoAdmin, "plimsoll-admin", groupAdmins),
			client(whoLauncher, "plimsoll-launcher", "system:masters"),
			client(whoControllerManager, "system:kube-controller-manager", ""),
			client(whoScheduler, "system:kube-scheduler", ""),
			client(whoLifecycle, userLifecycle, ""),
			client(whoAgent, "system:node:"+o.NodeName, "system:nodes"),
		}, some...),
		SigningKeys: []string{keyServiceTokens},
	}
}

// addresses removes duplicates and unspecified addresses, to which no client connects.
func addresses(ips ...net.IP) (out []net.IP) {
	for _, ip := range ips {
		if ip != nil && !ip.IsUnspecified() && !slices.ContainsFunc(out, ip.Equal) {
			out = append(out, ip)
		}
	}
	return out
}

// ensureIdentities creates or renews every key, certificate and kubeconfig, and returns what it created or renewed.
func (l layout) ensureIdentities(now time.Time) ([]string, error) {
	changed, err := pki.Ensure(l.pki(), l.plan(), now)
	if err != nil {
		return nil, err
	}
	for _, w := range l.components() {
		// The kubeconfigs contain paths, not certificates: these are renewed in place, and client-go reads them again.
		if err := l.writeKubeconfig(l.kubeconfig(w), w, false); err != nil {
			return nil, err
		}
	}
	return changed, l.writeKubeconfig(l.adminKubeconfig(), whoAdmin, true)
}

// components returns the identities that have a kubeconfig. That of the hollow nodes may delete every pod, so it exists
// only while there are hollow nodes.
func (l layout) components() []who {
	all := []who{whoLauncher, whoControllerManager, whoScheduler, whoLifecycle, whoAgent}
	if l.o.Hollow > 0 {
		all = append(all, whoFleet)
	}
	if l.o.has(childKubeProxy) {
		all = append(all, whoKubeProxy)
	}
	if l.o.has(addonCSI) {
		all = append(all, whoStorage)
	}
	return all
}

// writeKubeconfig writes the kubeconfig of w for this instance. A self-contained one can be copied to another place.
func (l layout) writeKubeconfig(path string, w who, selfContained bool) error {
	cluster := &clientcmdapi.Cluster{Server: l.serverURL(), CertificateAuthority: pki.CertPath(l.pki(), caCluster)}
	holder := string(l.o.holder(w))
	user := &clientcmdapi.AuthInfo{
		ClientCertificate: pki.CertPath(l.pki(), holder),
		ClientKey:         pki.KeyPath(l.pki(), holder),
	}
	config := clientcmdapi.NewConfig()
	name := l.o.fullName()
	config.Clusters[name] = cluster
	config.AuthInfos[string(w)] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: string(w)}
	config.CurrentContext = name
	if selfContained {
		if err := embed(cluster, user); err != nil {
			return fmt.Errorf("write kubeconfig of %s: %w", w, err)
		}
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", w, err)
	}
	_, err = durable.WriteIfChanged(path, text)
	return err
}

// embed replaces paths by the content of the files.
func embed(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) (err error) {
	for _, f := range []struct {
		path *string
		data *[]byte
	}{
		{&cluster.CertificateAuthority, &cluster.CertificateAuthorityData},
		{&user.ClientCertificate, &user.ClientCertificateData},
		{&user.ClientKey, &user.ClientKeyData},
	} {
		if *f.data, err = os.ReadFile(*f.path); err != nil {
			return err
		}
		*f.path = ""
	}
	return nil
}

func (l layout) serverURL() string {
	if l.o.joined() {
		return l.readServers().Use
	}
	return "https://" + net.JoinHostPort(l.o.localAddress(), fmt.Sprint(l.o.APIServerPort))
}
