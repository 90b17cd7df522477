package cluster

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// This file is for a cluster that other machines join. An instance is prepared for that if other machines can reach its
// kube-apiserver. An instance on the loopback needs none of this.

//go:embed bootstrap.yaml
var bootstrapManifest string

// shared reports whether other machines can be nodes of the cluster that runs here.
func (o *Options) shared() bool { return !o.joined() && !o.loopback() }

// nodeMaskBits is the prefix length of a node's pod network, in bits. It is upstream's default: a /24 has addresses for
// 110 pods and for their replacements.
const nodeMaskBits = 24

// nodeMask returns the prefix length of a node's pod network, in bits.
func (o *Options) nodeMask() int {
	pods, err := netip.ParsePrefix(o.PodCIDR)
	if err != nil {
		return nodeMaskBits // Validate has reported it
	}
	return max(nodeMaskBits, pods.Bits())
}

// clusterBitsMin is the shortest prefix of --pod-cidr that kube-controller-manager divides, in bits. A node's prefix
// may be at most 16 bits longer (clusterSubnetMaxDiff of its package cidrset).
const clusterBitsMin = nodeMaskBits - 16

// validateShared checks options that matter only if other machines can join.
func (o *Options) validateShared() (problems []error) {
	pods, err := netip.ParsePrefix(o.PodCIDR)
	if err != nil || !o.shared() {
		return nil // Validate has reported it
	}
	if pods.Addr().Is4() && pods.Bits() < clusterBitsMin {
		problems = append(problems, fmt.Errorf("--pod-cidr %s: want a network of /%d or smaller, which is "+
			"divided among the nodes", pods, clusterBitsMin))
	}
	return problems
}

// sharedControllers returns the flags of kube-controller-manager for machines that join: it signs cluster-info with
// tokens, removes expired tokens, and gives each node a part of --pod-cidr.
func (b builder) sharedControllers() []string {
	const controllers = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"
	if !b.o.shared() {
		return []string{controllers}
	}
	return []string{
		controllers + ",bootstrap-signer-controller,token-cleaner-controller",
		"--allocate-node-cidrs=true",
		"--cluster-cidr=" + b.o.PodCIDR,
		fmt.Sprintf("--node-cidr-mask-size=%d", b.o.nodeMask()),
	}
}

// settingsName is the ConfigMap in kube-system with the cluster's settings, and settingsKey is its key.
const (
	settingsName = "plimsoll-cluster"
	settingsKey  = "cluster.json"
)

// settings are the options that all machines of a cluster must have in common.
type settings struct {
	Kubernetes  string   `json:"kubernetes"` // release of the control plane
	PodCIDR     string   `json:"podCIDR"`    // of all pods
	ServiceCIDR string   `json:"serviceCIDR"`
	Without     []string `json:"without,omitempty"` // add-ons that the cluster leaves out
}

// bootstrapObjects returns the objects that let machines join, as YAML documents.
func (l layout) bootstrapObjects() ([]string, error) {
	authority, err := os.ReadFile(pki.CertPath(l.pki(), caCluster))
	if err != nil {
		return nil, fmt.Errorf("install objects: %w", err)
	}
	text, err := json.Marshal(settings{
		Kubernetes:  version.Kubernetes,
		PodCIDR:     l.o.PodCIDR,
		ServiceCIDR: l.o.ServiceCIDR,
		Without:     l.o.Without,
	})
	if err != nil {
		return nil, fmt.Errorf("install objects: %w", err)
	}
	return documents(strings.NewReplacer(
		"BOOTSTRAP_GROUP", bootstrap.Group,
		"SETTINGS_NAME", settingsName,
		"SETTINGS_JSON", string(text),
		"SERVER_URL", l.o.publicURL(),
		"AUTHORITY_DATA", base64.StdEncoding.EncodeToString(authority),
	).Replace(bootstrapManifest)), nil
}

// publicURL returns the URL at which other machines reach kube-apiserver.
func (o *Options) publicURL() string {
	return "https://" + net.JoinHostPort(o.advertiseAddress(), fmt.Sprint(o.APIServerPort))
}

// An Invitation is a new token, and what a machine needs in addition to join.
type Invitation struct {
	Token          string `json:"token"`
	Server         string `json:"server"`
	Hash           string `json:"discoveryTokenCACertHash"`
	CertificateKey string `json:"certificateKey,omitempty"` // of a token for servers
}

// Command is the command line that joins a machine.
func (i Invitation) Command() string {
	with := fmt.Sprintf("--token %s --discovery-token-ca-cert-hash %s", i.Token, i.Hash)
	if i.CertificateKey != "" {
		return fmt.Sprintf("plimsoll up --server %s %s --certificate-key %s", i.Server, with, i.CertificateKey)
	}
	return fmt.Sprintf("plimsoll join %s %s", i.Server, with)
}

// invites returns an error if no other machine can join the cluster here.
func (o *Options) invites() error {
	if o.joined() {
		return fmt.Errorf("create token: this machine is a node of %s: create it there", o.Server)
	}
	if !o.shared() {
		return fmt.Errorf("create token: kube-apiserver listens on %s, which no other machine reaches: "+
			"run `plimsoll down`, then `plimsoll up --bind-address 0.0.0.0` or with one address of this machine", o.BindAddress)
	}
	if o.several() {
		return fmt.Errorf("create token: with --nodes %d kube-apiserver listens on %s, the network between "+
			"the nodes of this machine, which no other machine reaches: run `plimsoll down`, then `plimsoll up --bind-address "+
			"0.0.0.0` without --nodes", o.Nodes, o.BindAddress)
	}
	return nil
}

// Invite creates a token for an instance that is up.
func Invite(ctx context.Context, o Options, life time.Duration, description string) (Invitation, error) {
	if err := o.invites(); err != nil {
		return Invitation{}, err
	}
	client, err := TokenClient(o)
	if err != nil {
		return Invitation{}, err
	}
	token, err := bootstrap.CreateToken(ctx, client, life, description)
	if err != nil {
		return Invitation{}, err
	}
	o.awaitSigned(ctx, client, token)
	hash, err := layout{o}.authorityHash()
	return Invitation{Token: token, Server: o.publicURL(), Hash: hash}, err
}

// Bounds of the wait for the signature of a new token (chosen). kube-controller-manager needs some 20 ms. Where several
// of them elect a leader, another one begins some 20 s after the leader was lost.
const (
	signedMax        = 5 * time.Second
	signedMaxElected = 30 * time.Second
)

// awaitSigned waits until a new token can be used. If that is late, who uses it is told so.
func (o *Options) awaitSigned(ctx context.Context, client *kube.Client, token string) {
	limit := signedMax
	if o.elects() {
		limit = signedMaxElected
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for bootstrap.Signed(ctx, client, token) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollPeriod):
		}
	}
}

// authorityHash returns the hash by which machines that join recognize the cluster's authority.
func (l layout) authorityHash() (string, error) {
	text, err := os.ReadFile(pki.CertPath(l.pki(), caCluster))
	if err != nil {
		return "", err
	}
	authority, err := bootstrap.ParseAuthority(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", pki.CertPath(l.pki(), caCluster), err)
	}
	return bootstrap.HashOf(authority), nil
}

// TokenClient returns a client with the administrator's rights over an instance's tokens and nodes.
func TokenClient(o Options) (*kube.Client, error) {
	if o.joined() {
		return nil, fmt.Errorf("this machine is a node of %s: run the command there", o.Server)
	}
	if _, err := AdminKubeconfig(o); err != nil {
		return nil, err
	}
	return layout{o}.client(whoAdmin)
}
