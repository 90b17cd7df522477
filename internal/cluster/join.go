package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// This file is for a machine that joins a cluster. Once it has certificates it needs no token, because it renews them
// itself. If the server cannot be reached, the machine starts with the settings of its last start.

// joined reports whether the instance is a node of another machine's cluster.
func (o *Options) joined() bool { return o.Server != "" }

// Joined reports whether the instance is a node of another machine's cluster.
func (o *Options) Joined() bool { return o.joined() }

// holder returns whose certificate an identity uses: on a machine that joined, all but storage use the node's.
func (o *Options) holder(w who) who {
	if o.joined() && w != whoStorage {
		return whoAgent
	}
	return w
}

// FillJoined sets the options that a machine that joins does not choose. Its ports are on the node's own address, so
// that kube-apiserver reaches its agent.
func (o *Options) FillJoined() error {
	server, err := bootstrap.ParseServer(o.Server)
	if err != nil {
		return err
	}
	o.Server = server
	o.Agent = true
	if err := o.Fill(); err != nil {
		return err
	}
	if o.BindAddress == "" {
		o.BindAddress = o.NodeIP
	}
	// These are placeholders until the cluster's settings are known. They are valid and not used.
	o.PodCIDR, o.ServiceCIDR = "10.85.0.0/16", "10.96.0.0/16"
	return nil
}

// ValidateJoined returns everything that is wrong with the options of a machine that joins.
func (o *Options) ValidateJoined() error {
	err := errors.Join(o.Validate(), o.validateToken())
	if ip := net.ParseIP(o.NodeIP); ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		err = errors.Join(err, fmt.Errorf("--node-ip %s: the server does not reach this machine by that address", o.NodeIP))
	}
	return err
}

// checkRole returns an error if the state directory belongs to another cluster than the requested one. Whether a server
// that a node does not know is one of its cluster is found out later (takeServer).
func (l layout) checkRole() error {
	kept, err := Load(l.o)
	if err != nil {
		return nil // there are no options, or they are damaged: they are written anew
	}
	switch {
	case kept.Server == "" && l.o.Server == "":
		return l.checkServer(kept)
	case kept.Server == l.o.Server:
		return nil
	case kept.Server == "":
		return fmt.Errorf("join %s: %s has a cluster of this machine's own: remove it with `plimsoll down "+
			"--purge`, or choose another --instance", l.o.Server, l.o.StateDir)
	case l.o.Server == "":
		return fmt.Errorf("start a cluster: %s belongs to a node of %s: start that again with `plimsoll join "+
			"%s`, remove it with `plimsoll down --purge`, or choose another --instance",
			l.o.StateDir, kept.Server, kept.Server)
	}
	if used := l.movedServer(); used != "" {
		if pid, err := lockHolder(l.lock()); err == nil && pid != 0 {
			return fmt.Errorf("join %s: %s has a node of %s, which runs (pid %d): run `plimsoll down` first", l.o.Server,
				l.o.StateDir, used, pid)
		}
	}
	return nil
}

// movedServer returns the server that this machine has used, if the options name one that it does not know: the
// cluster's server may have another port or address than before. Empty: they do not.
func (l layout) movedServer() string {
	kept, err := Load(l.o)
	if err != nil || kept.Server == "" || kept.Server == l.o.Server || l.isServer(l.o.Server) {
		return ""
	}
	return cmp.Or(l.keptServers().Use, kept.Server)
}

// takeServer uses the server of the options in place of the one that this machine has used, if that is a server of the
// same cluster: it has a certificate of the authority that this machine knows, and accepts this node's.
func (c *cluster) takeServer(ctx context.Context, used string) error {
	client, err := c.clientOf(c.o.Server)
	if err != nil {
		return err
	}
	if err := c.askSettings(ctx, client); err != nil {
		return c.notOfCluster(used, err)
	}
	if err := c.writeServers(servers{Use: c.o.Server, Known: []string{c.o.Server}}); err != nil {
		return err
	}
	return c.useServer(c.o.Server)
}

// notOfCluster is the error for a server that is not, or does not seem to be, one of the cluster of this machine.
func (c *cluster) notOfCluster(used string, why error) error {
	return fmt.Errorf("join %s: %s belongs to a node of %s, and this does not prove to be a server of the same cluster: "+
		"%w: if it is not, remove the node with `plimsoll down --purge`, or choose another --instance", c.o.Server,
		c.o.StateDir, used, why)
}

// identities returns the certificates that the cluster signs for the node.
func (l layout) identities() (client, server bootstrap.Identity) {
	dir := l.pki()
	client = bootstrap.Identity{Cert: pki.CertPath(dir, string(whoAgent)), Key: pki.KeyPath(dir,
		string(whoAgent)), Node: l.o.NodeName}
	server = bootstrap.Identity{
		Cert:   pki.CertPath(dir, certAgentServing),
		Key:    pki.KeyPath(dir, certAgentServing),
		Node:   l.o.NodeName,
		Server: true,
		IP:     net.ParseIP(l.o.NodeIP),
	}
	return client, server
}

// bringUpNode is bringUp of a machine that joins, for the first time or again.
func (c *cluster) bringUpNode(ctx context.Context) error {
	c.halfJoined = !c.exists()
	var client *kube.Client
	err := progress.Step(c.sink, "cluster", func() (detail string, err error) {
		client, err = c.connectToCluster(ctx)
		return c.o.Server, err
	})
	if err != nil {
		return err
	}
	if err := progress.Step(c.sink, "check this machine", func() (string, error) {
		return "",
			c.preflight()
	}); err != nil {
		return err
	}
	err = progress.Step(c.sink, "keys and certificates", func() (string, error) { return c.enroll(ctx, client) })
	if err != nil {
		return err
	}
	if err := c.configureAgent(); err != nil {
		return err
	}
	if err := c.startRuntime(ctx); err != nil {
		return err
	}
	if err := c.applyComponents(ctx); err != nil {
		return err
	}
	own, err := c.client(whoAgent)
	if err != nil {
		return err
	}
	waits := c.nodeWaits(own)
	if c.o.has(addonCSI) {
		waits = append(waits, func(ctx context.Context) error {
			return c.awaitDriver(ctx, own, c.o.NodeName, childCSIDriver, childAgent)
		})
	}
	return parallel(ctx, waits...)
}

// connectToCluster connects to the cluster, with the node's certificate or, if it has none, with the token. It sets the
// options that the cluster decides.
func (c *cluster) connectToCluster(ctx context.Context) (*kube.Client, error) {
	why := "there is none"
	var expired bool
	authority, err := c.keptAuthority()
	if err != nil {
		return nil, err
	}
	if authority != nil {
		known, err := bootstrap.ParseAuthority(authority)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pki.CertPath(c.pki(), caCluster), err)
		}
		identity, _ := c.identities()
		why, expired = identity.Due(known, time.Now())
	}
	used := c.movedServer()
	if why == "" || why == bootstrap.ExpiresSoon {
		find := c.findServer
		if used != "" {
			find = func(ctx context.Context) error { return c.takeServer(ctx, used) }
		}
		if err := find(ctx); err != nil {
			return nil, err
		}
		client, err := c.client(whoAgent)
		if err != nil {
			return nil, err
		}
		err = c.askSettings(ctx, client)
		if err != nil && !apierrors.IsUnauthorized(err) && c.exists() {
			c.sink.Show(progress.Event{Step: "cluster", Phase: progress.Note,
				Detail: "starting with the settings of the last start: " + err.Error()})
			return client, c.keepSettings()
		}
		return client, err
	}
	if err := c.o.readToken(); err != nil {
		return nil, err
	}
	if c.o.Token == "" {
		if expired {
			why += ": this machine was away for too long"
		}
		return nil, fmt.Errorf("join %s: the certificate of node %s: %s: give --token and "+
			"--discovery-token-ca-cert-hash, which `plimsoll token create` prints on the server",
			c.o.Server, c.o.NodeName, why)
	}
	seed := bootstrap.Seed{Server: c.o.Server, Token: c.o.Token, Hash: c.o.AuthorityHash}
	if c.authority, err = seed.Discover(ctx, time.Now()); err != nil {
		return nil, err
	}
	if used != "" && !bytes.Equal(c.authority, authority) {
		return nil, c.notOfCluster(used, errors.New("it has another authority"))
	}
	if known := c.readServers(); known.Use != c.o.Server {
		known.Use = c.o.Server
		if err := c.writeServers(known); err != nil {
			return nil, err
		}
	}
	client, err := kube.NewClientForConfig(&rest.Config{
		Host:            c.o.Server,
		BearerToken:     c.o.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority},
		UserAgent:       "plimsoll-join",
		QPS:             -1,
	})
	if err != nil {
		return nil, err
	}
	if err := c.askSettings(ctx, client); err != nil {
		return nil, err
	}
	return client, c.checkName(ctx, client)
}

// readToken reads the token from --token-file, unless --token has it.
func (o *Options) readToken() error {
	if o.Token != "" || o.TokenFile == "" {
		return nil
	}
	text, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return fmt.Errorf("read --token-file: %w", err)
	}
	o.Token = strings.TrimSpace(string(text))
	if err := o.validateToken(); err != nil {
		return fmt.Errorf("read --token-file %s: %w", o.TokenFile, err)
	}
	return nil
}

// validateToken checks the token and the hash, if there is a token. Only a first join needs them.
func (o *Options) validateToken() (err error) {
	if o.Token == "" {
		return nil
	}
	if _, _, bad := bootstrap.Parts(o.Token); bad != nil {
		err = fmt.Errorf("--token: %w", bad) // without its value, which is a secret
	}
	if bad := bootstrap.ParseHash(o.AuthorityHash); bad != nil {
		err = errors.Join(err, fmt.Errorf("--discovery-token-ca-cert-hash %q: %w", o.AuthorityHash, bad))
	}
	return err
}

// keptAuthority returns the authority of the cluster that the machine has joined; nil: it has not.
func (l layout) keptAuthority() ([]byte, error) {
	text, err := os.ReadFile(pki.CertPath(l.pki(), caCluster))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// settingsTimeout bounds one request to the server (chosen).
const settingsTimeout = 10 * time.Second

// askSettings reads the settings that all machines of the cluster have in common.
func (c *cluster) askSettings(ctx context.Context, client *kube.Client) error {
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	object := &corev1.ConfigMap{}
	err := client.Get(ctx, kube.ConfigMaps, metav1.NamespaceSystem, settingsName, object)
	switch {
	case apierrors.IsUnauthorized(err) && c.o.Token != "":
		id, _, _ := bootstrap.Parts(c.o.Token)
		return &bootstrap.TokenError{ID: id, Server: c.o.Server, Why: "it has expired, or was deleted"}
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("ask %s for its settings: it does not accept this node's certificate: join again with "+
			"--token: %w", c.o.Server, err)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return fmt.Errorf("ask %s for its settings: ConfigMap kube-system/%s: `plimsoll up` writes it where "+
			"kube-apiserver listens for other machines: %w", c.o.Server, settingsName, err)
	case ctx.Err() != nil:
		return fmt.Errorf("ask %s for its settings: no answer within %s: %w: is it busy, or cut off? run join again",
			c.o.Server, settingsTimeout, err)
	case err != nil:
		return fmt.Errorf("ask %s for its settings: %w", c.o.Server, err)
	}
	s := settings{}
	if err := json.Unmarshal([]byte(object.Data[settingsKey]), &s); err != nil {
		return fmt.Errorf("ask %s for its settings: ConfigMap kube-system/%s, %s: %w", c.o.Server, settingsName,
			settingsKey, err)
	}
	c.o.PodCIDR = s.PodCIDR
	c.o.ServiceCIDR = s.ServiceCIDR
	c.o.Without = s.Without
	if err := errors.Join(c.o.Validate(), checkSkew(s.Kubernetes)); err != nil {
		return fmt.Errorf("ask %s for its settings: %w", c.o.Server, err)
	}
	return nil
}

// keepSettings uses the settings of the last start.
func (c *cluster) keepSettings() error {
	kept, err := Load(c.o)
	if err != nil {
		return err
	}
	c.o.PodCIDR = kept.PodCIDR
	c.o.ServiceCIDR = kept.ServiceCIDR
	c.o.Without = kept.Without
	return nil
}

// kubeletSkewMax is by how many minor releases a kubelet may be older than kube-apiserver; it must not be newer
// (https://kubernetes.io/releases/version-skew-policy/).
const kubeletSkewMax = 3

func checkSkew(server string) error {
	there, err := utilversion.ParseSemantic(server)
	if err != nil {
		return fmt.Errorf("release %q of Kubernetes: %w", server, err)
	}
	here := utilversion.MustParseSemantic(version.Kubernetes)
	if here.Major() != there.Major() || here.Minor() > there.Minor() || here.Minor()+kubeletSkewMax < there.Minor() {
		return fmt.Errorf("the cluster has release v%s of Kubernetes, this node would have v%s: it must not be "+
			"newer, and older by %d minor releases at most", there, here, kubeletSkewMax)
	}
	return nil
}

// checkName returns an error if the cluster has a node of this name that is another machine: it is Ready, or it has
// another address and this machine has never had a certificate of that name. One that is not Ready with this address is
// this machine, before its disk was replaced. Certificates of a machine that is switched off are valid when it returns:
// two agents would then report one Node.
func (c *cluster) checkName(ctx context.Context, client *kube.Client) error {
	node := &corev1.Node{}
	err := client.Get(ctx, kube.Nodes, "", c.o.NodeName, node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for node %s: %w", c.o.NodeName, err)
	}
	if err := readyCondition(node); err != nil {
		address := internalIP(node)
		if address == "" || address == c.o.NodeIP || c.wasNode() {
			return nil
		}
		return fmt.Errorf("join as node %s: the cluster has a node of that name, which has the address %s and is not "+
			"Ready now: choose another name with --node-name; if that machine does not come back, or is this one with another "+
			"address, run `plimsoll node remove %s` on the server first (%w)", c.o.NodeName, address, c.o.NodeName, err)
	}
	return fmt.Errorf("join as node %s: the cluster has a Ready node of that name, with the address %s: choose "+
		"another name with --node-name; if this machine was that node, run `plimsoll node remove %s` on the server first",
		c.o.NodeName, internalIP(node), c.o.NodeName)
}

// wasNode reports whether this machine has had a certificate of its node's name from this cluster, also an expired one.
// A further server has none to look at: it has just signed its own.
func (c *cluster) wasNode() bool {
	if !c.o.joined() {
		return false
	}
	text, err := c.keptAuthority()
	if err != nil || text == nil || c.authority != nil && !bytes.Equal(text, c.authority) {
		return false
	}
	client, _ := c.identities()
	certificate, err := client.Read()
	if err != nil || certificate.Subject.CommonName != "system:node:"+c.o.NodeName {
		return false
	}
	authority, err := bootstrap.ParseAuthority(text)
	return err == nil && certificate.CheckSignatureFrom(authority) == nil
}

// internalIP returns the address of a node; the zero value: it has none.
func internalIP(node *corev1.Node) string {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// certificateTimeout bounds the wait for one certificate (chosen; with an idle server it takes 0.2 s).
const certificateTimeout = 30 * time.Second

// enroll requests the node's certificates, writes its kubeconfigs and saves the options. From then on the machine
// counts as joined.
func (c *cluster) enroll(ctx context.Context, first *kube.Client) (string, error) {
	if c.authority != nil {
		if _, err := durable.WriteIfChanged(pki.CertPath(c.pki(), caCluster), c.authority); err != nil {
			return "", err
		}
		client, _ := c.identities()
		client.Claims, client.IP = true, net.ParseIP(c.o.NodeIP)
		if err := requestWithin(ctx, client, first); err != nil {
			return "", err
		}
	}
	for _, w := range []who{whoAgent, whoKubeProxy} {
		if err := c.writeKubeconfig(c.kubeconfig(w), w, false); err != nil {
			return "", err
		}
	}
	changed, err := c.renewMembership(ctx)
	if err != nil && c.halfJoined {
		return "", err
	}
	if err != nil { // the server may be away, and the present certificates may still be valid
		c.logger.Warn("renew certificates", "error", err)
	}
	if c.authority != nil {
		changed = append(changed, string(whoAgent))
	}
	if err := errors.Join(c.saveVersion(), c.o.save()); err != nil {
		return "", err
	}
	if len(changed) == 0 {
		return "all present", nil
	}
	return fmt.Sprintf("%d made", len(changed)), nil
}

func requestWithin(ctx context.Context, i bootstrap.Identity, client *kube.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, certificateTimeout, fmt.Errorf("not within %s", certificateTimeout))
	defer cancel()
	return i.Request(ctx, client)
}

// renewMembership requests the certificates that are missing or expire soon, and returns their names.
func (c *cluster) renewMembership(ctx context.Context) (changed []string, err error) {
	text, err := c.keptAuthority()
	if err != nil {
		return nil, err
	}
	authority, err := bootstrap.ParseAuthority(text)
	if err != nil {
		return nil, err
	}
	api, err := c.client(whoAgent)
	if err != nil {
		return nil, err
	}
	client, server := c.identities()
	for _, i := range []bootstrap.Identity{client, server} {
		if why, _ := i.Due(authority, time.Now()); why == "" {
			continue
		}
		if err := requestWithin(ctx, i, api); err != nil {
			return changed, err
		}
		changed = append(changed, i.Cert)
	}
	if c.o.has(addonCSI) {
		renewed, err := c.renewStorage(ctx, authority)
		return append(changed, renewed...), err
	}
	return changed, nil
}

// leave removes everything that a failed join has left on this machine.
func (c *cluster) leave(ctx context.Context) error {
	err := c.takeDownAfter(ctx)
	if err == nil {
		err = c.purge()
	}
	if err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}
