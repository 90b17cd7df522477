package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// Several servers of one cluster: machines that each run kube-apiserver and the controllers, on one etcd that is no
// server's own. Each signs with the cluster's authorities, so all have the authorities' keys. The first server makes
// them. A further one (Options.FirstServer) gets them once, from a server that runs, by a token for servers; what they
// share is kept in its state from then on.

// Files of what is shared that only a further server has: its etcd's certificates, as the options of the first name
// them.
const (
	certEtcdCA     = "etcd-ca"
	certEtcdClient = "etcd-client"
)

// sharedState is what the servers of a cluster have in common.
type sharedState struct {
	Kubernetes      string            `json:"kubernetes"` // release of the server that shares
	ClusterID       string            `json:"clusterID"`
	PodCIDR         string            `json:"podCIDR"`
	ServiceCIDR     string            `json:"serviceCIDR"`
	APIServerPort   int               `json:"apiserverPort,omitempty"`
	SigningDuration time.Duration     `json:"signingDuration,omitempty"`
	Without         []string          `json:"without,omitempty"`
	EtcdServers     []string          `json:"etcdServers"`
	Files           map[string][]byte `json:"files"` // by their name in pki
}

// sharedFiles are the names in pki of what servers share, and whether each server needs it.
func sharedFiles() map[string]bool {
	return map[string]bool{
		pki.CertPath("", caCluster):       true,
		pki.KeyPath("", caCluster):        true,
		pki.CertPath("", caFrontProxy):    true,
		pki.KeyPath("", caFrontProxy):     true,
		pki.KeyPath("", keyServiceTokens): true,
		// One certificate, or the Secret that has it would change with every server that starts.
		pki.CertPath("", certMetrics):    false,
		pki.KeyPath("", certMetrics):     false,
		pki.CertPath("", certEtcdCA):     false,
		pki.CertPath("", certEtcdClient): false,
		pki.KeyPath("", certEtcdClient):  false,
	}
}

// further reports whether the instance is a further server of a cluster.
func (o *Options) further() bool { return o.FirstServer != "" }

// FillServer sets what a further server does not choose: its cluster has decided it.
func (o *Options) FillServer() error {
	server, err := bootstrap.ParseServer(o.FirstServer)
	if err != nil {
		return fmt.Errorf("--server: %w", err)
	}
	o.FirstServer = server
	if err := o.Fill(); err != nil {
		return err
	}
	if o.BindAddress == "" {
		o.BindAddress = o.NodeIP
	}
	return nil
}

// ValidateServer returns everything that is wrong with the options of a further server.
func (o *Options) ValidateServer() error {
	errs := []error{o.Validate(), o.validateToken()}
	if o.loopback() {
		errs = append(errs, fmt.Errorf("--bind-address %s: other machines do not reach this server there: leave it out, or "+
			"name an address of this machine", o.BindAddress))
	}
	if ip := net.ParseIP(o.NodeIP); ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		errs = append(errs, fmt.Errorf("--node-ip %s: other machines do not reach this one by that address", o.NodeIP))
	}
	if o.several() {
		errs = append(errs, fmt.Errorf("--nodes %d: with --server this machine is one node", o.Nodes))
	}
	if o.Hollow > 0 {
		errs = append(errs, fmt.Errorf("--hollow %d: with --server: run hollow nodes on the first server, or "+
			"`plimsoll fleet`", o.Hollow))
	}
	if o.CertificateKey != "" {
		if _, err := bootstrap.ParseCertificateKey(o.CertificateKey); err != nil {
			errs = append(errs, fmt.Errorf("--certificate-key: %w", err)) // without its value, which is a secret
		}
	}
	if (o.CertificateKey == "") != (o.Token == "" && o.TokenFile == "") {
		errs = append(errs, errors.New("--token and --certificate-key: want both, as `plimsoll token create --server` "+
			"prints them, or neither, once this machine is a server"))
	}
	return errors.Join(errs...)
}

// checkServer returns an error where the state directory's control plane is not the one that is asked for.
func (l layout) checkServer(kept Options) error {
	switch {
	case l.o.further() && !kept.further():
		return fmt.Errorf("become a server of %s: %s has a cluster of this machine's own: remove it with `plimsoll down "+
			"--purge`, or choose another --instance", l.o.FirstServer, l.o.StateDir)
	case l.o.further() || len(l.o.EtcdServers) > 0 || len(kept.EtcdServers) == 0:
		return nil
	case kept.further():
		return fmt.Errorf("start a cluster: %s belongs to a server beside %s: start that again with `plimsoll up --server "+
			"%s`, or remove it with `plimsoll down --purge`", l.o.StateDir, kept.FirstServer, kept.FirstServer)
	}
	return fmt.Errorf("start a cluster: the objects of the one in %s are in the etcd at %s: give --etcd-servers again, "+
		"or begin a new cluster after `plimsoll down --purge`", l.o.StateDir, strings.Join(kept.EtcdServers, ","))
}

// InviteServer creates a token for further servers of an instance that is up.
func InviteServer(ctx context.Context, o Options, life time.Duration, description string) (Invitation, error) {
	if err := o.invites(); err != nil {
		return Invitation{}, err
	}
	if len(o.EtcdServers) == 0 {
		return Invitation{}, errors.New("create token: further servers need an etcd that they reach, and this cluster's is " +
			"on a socket of this machine: move it out (docs/servers.md), then `plimsoll up --etcd-servers`")
	}
	client, err := TokenClient(o)
	if err != nil {
		return Invitation{}, err
	}
	l := layout{o}
	shared, err := l.sharedState()
	if err != nil {
		return Invitation{}, fmt.Errorf("create token: %w", err)
	}
	text, err := json.Marshal(shared)
	if err != nil {
		return Invitation{}, fmt.Errorf("create token: %w", err)
	}
	made, err := bootstrap.CreateServerToken(ctx, client, life, description, text)
	if err != nil {
		return Invitation{}, err
	}
	// They belong to the Secret, so that they go when the token does.
	objects := documents(strings.NewReplacer(
		"SECRET_NAME", made.Secret.Name,
		"SECRET_UID", string(made.Secret.UID),
		"TOKEN_USER", bootstrap.UserOf(made.Token),
	).Replace(serverTokenManifest))
	if err := applyObjects(ctx, client, objects); err != nil {
		return Invitation{}, errors.Join(err, bootstrap.ForgetToken(ctx, client, made.Token))
	}
	o.awaitSigned(ctx, client, made.Token)
	hash, err := l.authorityHash()
	return Invitation{
		Token:          made.Token,
		Server:         o.publicURL(),
		Hash:           hash,
		CertificateKey: made.Key,
	}, err
}

// serverTokenManifest lets the bearer of a token for servers read its Secret.
const serverTokenManifest = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: "plimsoll:SECRET_NAME"
  namespace: kube-system
  ownerReferences: [{apiVersion: v1, kind: Secret, name: "SECRET_NAME", uid: "SECRET_UID"}]
rules:
- {apiGroups: [""], resources: [secrets], resourceNames: ["SECRET_NAME"], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: "plimsoll:SECRET_NAME"
  namespace: kube-system
  ownerReferences: [{apiVersion: v1, kind: Secret, name: "SECRET_NAME", uid: "SECRET_UID"}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: "plimsoll:SECRET_NAME"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "TOKEN_USER"}
`

// sharedState reads what this server shares with further ones.
func (l layout) sharedState() (sharedState, error) {
	id, err := l.keptClusterID()
	if err != nil {
		return sharedState{}, err
	}
	if id == "" {
		return sharedState{}, fmt.Errorf("%s is missing: run `plimsoll up` again, which writes it", l.clusterID())
	}
	s := sharedState{
		Kubernetes:      version.Kubernetes,
		ClusterID:       id,
		PodCIDR:         l.o.PodCIDR,
		ServiceCIDR:     l.o.ServiceCIDR,
		APIServerPort:   l.o.APIServerPort,
		SigningDuration: l.o.SigningDuration,
		Without:         l.o.Without,
		EtcdServers:     l.o.EtcdServers,
		Files:           map[string][]byte{},
	}
	from := map[string]string{
		pki.CertPath("", certEtcdCA):     l.o.EtcdCAFile,
		pki.CertPath("", certEtcdClient): l.o.EtcdCertFile,
		pki.KeyPath("", certEtcdClient):  l.o.EtcdKeyFile,
	}
	for name, required := range sharedFiles() {
		path, elsewhere := from[name]
		if !elsewhere {
			path = l.state("pki", name)
		}
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && !required && !elsewhere {
			continue
		}
		if err != nil {
			return s, err
		}
		s.Files[name] = text
	}
	return s, nil
}

// joinServers gets what the servers share, if this machine is to be a further server and has not got it yet; else it
// takes the settings of the last start.
func (c *cluster) joinServers(ctx context.Context) error {
	if !c.o.further() {
		return nil
	}
	if c.exists() {
		kept, err := Load(c.o)
		if err != nil {
			return err
		}
		c.takeShared(sharedState{
			PodCIDR:         kept.PodCIDR,
			ServiceCIDR:     kept.ServiceCIDR,
			SigningDuration: kept.SigningDuration,
			Without:         kept.Without,
			EtcdServers:     kept.EtcdServers,
		})
		if c.o.APIServerPort == 0 {
			c.o.APIServerPort = kept.APIServerPort
		}
		return c.o.Validate()
	}
	c.halfJoined = true
	return progress.Step(c.sink, "cluster", func() (string, error) {
		s, err := c.askShared(ctx)
		if err != nil {
			return "", err
		}
		if err := c.takePort(s.APIServerPort); err != nil {
			return "", err
		}
		if err := c.keepShared(s); err != nil {
			return "", fmt.Errorf("keep what servers share: %w", err)
		}
		return c.o.FirstServer, c.o.Validate()
	})
}

// checkServerName claims the name of this machine's node, if it is to become a server. It returns an error if the
// cluster has another node of that name, or another machine claims it now: two agents would then report one Node. The
// authority of all servers has signed the certificate with which it asks.
func (c *cluster) checkServerName(ctx context.Context) error {
	if !c.halfJoined || !c.o.Agent {
		return nil
	}
	client, err := c.clientOf(c.o.FirstServer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	if err := c.checkName(ctx, client); err != nil {
		return err
	}
	identity, _ := c.identities()
	identity.IP = net.ParseIP(c.o.NodeIP)
	return identity.ClaimName(ctx, client)
}

// askShared asks a server that runs for what servers share.
func (c *cluster) askShared(ctx context.Context) (s sharedState, err error) {
	if err := c.o.readToken(); err != nil {
		return s, err
	}
	if c.o.Token == "" {
		return s, fmt.Errorf("become a server of %s: this machine has not been one: give --token, "+
			"--discovery-token-ca-cert-hash and --certificate-key, which `plimsoll token create --server` prints on a server",
			c.o.FirstServer)
	}
	key, err := bootstrap.ParseCertificateKey(c.o.CertificateKey)
	if err != nil {
		return s, fmt.Errorf("--certificate-key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	seed := bootstrap.Seed{Server: c.o.FirstServer, Token: c.o.Token, Hash: c.o.AuthorityHash}
	authority, err := seed.Discover(ctx, time.Now())
	if err != nil {
		return s, err
	}
	client, err := kube.NewClientForConfig(&rest.Config{
		Host:            c.o.FirstServer,
		BearerToken:     c.o.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: authority},
		UserAgent:       "plimsoll-up",
		QPS:             -1,
	})
	if err != nil {
		return s, err
	}
	text, err := bootstrap.ReadShared(ctx, client, c.o.FirstServer, c.o.Token, key)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read what servers share: %w", err)
	}
	return s, s.check()
}

// check returns an error if this program cannot be a server beside the one that shared s.
func (s sharedState) check() error {
	for name, required := range sharedFiles() {
		if required && len(s.Files[name]) == 0 {
			return fmt.Errorf("read what servers share: it lacks %s: is the other server's plimsoll of the same release?",
				name)
		}
	}
	return checkServerSkew(s.Kubernetes)
}

// checkServerSkew: kube-apiservers of one cluster are at most one minor release apart
// (https://kubernetes.io/releases/version-skew-policy/).
func checkServerSkew(server string) error {
	there, err := utilversion.ParseSemantic(server)
	if err != nil {
		return fmt.Errorf("release %q of Kubernetes: %w", server, err)
	}
	here := utilversion.MustParseSemantic(version.Kubernetes)
	if here.Major() != there.Major() || max(here.Minor(), there.Minor())-min(here.Minor(), there.Minor()) > 1 {
		return fmt.Errorf("the cluster has release v%s of Kubernetes, this server would have v%s: servers must not be more "+
			"than one minor release apart", there, here)
	}
	return nil
}

// keepShared writes what servers share into the state directory, where ensureIdentities finds the authorities.
func (c *cluster) keepShared(s sharedState) error {
	known := sharedFiles()
	for name, text := range s.Files {
		if _, ok := known[name]; !ok {
			continue // of a newer release
		}
		if _, err := durable.WriteIfChanged(c.state("pki", name), text); err != nil {
			return err
		}
	}
	if _, err := durable.WriteIfChanged(c.clusterID(), []byte(s.ClusterID+"\n")); err != nil {
		return err
	}
	c.takeShared(s)
	return nil
}

// takeShared sets the options that the servers have in common. Those of etcd may be this server's own.
func (c *cluster) takeShared(s sharedState) {
	c.o.PodCIDR = s.PodCIDR
	c.o.ServiceCIDR = s.ServiceCIDR
	c.o.SigningDuration = s.SigningDuration
	c.o.Without = s.Without
	if len(c.o.EtcdServers) == 0 {
		c.o.EtcdServers = s.EtcdServers
	}
	for path, name := range map[*string]string{
		&c.o.EtcdCAFile:   pki.CertPath("", certEtcdCA),
		&c.o.EtcdCertFile: pki.CertPath("", certEtcdClient),
		&c.o.EtcdKeyFile:  pki.KeyPath("", certEtcdClient),
	} {
		kept := c.state("pki", name)
		if _, err := os.Stat(kept); *path == "" && err == nil {
			*path = kept
		}
	}
}

// serversOf returns the URLs of the servers in the EndpointSlices of Service kubernetes, sorted.
func serversOf(ctx context.Context, client *kube.Client) ([]string, error) {
	var list struct {
		Items []struct {
			Endpoints []struct {
				Addresses []string `json:"addresses"`
			} `json:"endpoints"`
			Ports []struct {
				Port *int32 `json:"port"`
			} `json:"ports"`
		} `json:"items"`
	}
	text, err := client.REST(schema.GroupVersion{Version: "v1"}).Get().
		AbsPath("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices").
		Param("labelSelector", "kubernetes.io/service-name=kubernetes").
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the cluster's servers: %w", err)
	}
	var urls []string
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				for _, port := range slice.Ports {
					if port.Port != nil {
						urls = append(urls, "https://"+net.JoinHostPort(address, fmt.Sprint(*port.Port)))
					}
				}
			}
		}
	}
	slices.Sort(urls)
	return slices.Compact(urls), nil
}
