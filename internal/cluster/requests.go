package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/core/clientcert"
	"github.com/plimsoll-dev/plimsoll/internal/core/servingcert"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// keepRequests approves or denies the requests of nodes for serving certificates, and those of user plimsoll:storage
// for another client certificate, until ctx ends. No controller of upstream does that. kube-controller-manager signs
// the approved ones. Requests that claim the name of a node are bound to the node. Requests of others are left alone.
func (c *cluster) keepRequests(ctx context.Context) {
	client, err := c.client(whoLauncher)
	if err != nil {
		c.logger.Warn("watch requests for certificates", "err", err)
		return
	}
	pending := make(chan *certificatesv1.CertificateSigningRequest)
	hand := func(object any) {
		r, ok := object.(*certificatesv1.CertificateSigningRequest)
		if !ok || len(r.Status.Conditions) > 0 || !ourConcern(r) {
			return
		}
		select {
		case pending <- r:
		case <-ctx.Done():
		}
	}
	var stores []cache.Store
	var running sync.WaitGroup
	for _, signer := range []string{
		certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientSignerName,
		certificatesv1.KubeAPIServerClientKubeletSignerName,
	} {
		only := kube.Selection{Fields: fields.OneTermEqualSelector("spec.signerName", signer)}
		store, informer := client.Informer(kube.CertificateRequests, only, cache.ResourceEventHandlerFuncs{
			AddFunc:    hand,
			UpdateFunc: func(_, is any) { hand(is) },
		})
		stores = append(stores, store)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	defer running.Wait()
	retry := time.NewTicker(requestsPeriod)
	defer retry.Stop()
	bind := time.NewTicker(bindPeriod)
	defer bind.Stop()
	each := func(do func(context.Context, *kube.Client, *certificatesv1.CertificateSigningRequest)) {
		for _, store := range stores {
			for _, object := range store.List() {
				if r, ok := object.(*certificatesv1.CertificateSigningRequest); ok {
					do(ctx, client, r)
				}
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-pending:
			c.answerRequest(ctx, client, r)
		case <-retry.C:
			each(c.retryRequest)
		case <-bind.C:
			each(c.bindRequest)
		}
	}
}

// retryRequest answers a request that could not be answered before.
func (c *cluster) retryRequest(ctx context.Context, client *kube.Client, r *certificatesv1.CertificateSigningRequest) {
	if ourConcern(r) && len(r.Status.Conditions) == 0 {
		c.answerRequest(ctx, client, r)
	}
}

// bindRequest binds a request that claims the name of a node to the node, which may have come since.
func (c *cluster) bindRequest(ctx context.Context, client *kube.Client, r *certificatesv1.CertificateSigningRequest) {
	if !bootstrap.IsUnbound(r, time.Now()) {
		return
	}
	if err := bootstrap.BindName(ctx, client, r); err != nil && ctx.Err() == nil {
		c.logger.Warn("a deleted node may keep its name for some minutes", "err", err)
	}
}

// ourConcern reports whether a request is one that keepRequests answers.
func ourConcern(r *certificatesv1.CertificateSigningRequest) bool {
	return r.Spec.SignerName == certificatesv1.KubeletServingSignerName ||
		r.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName && r.Spec.Username == userStorage
}

// requestsPeriod is the time between two tries to answer a request (chosen).
const requestsPeriod = 10 * time.Second

// bindPeriod is the time between two looks for the nodes of requests that claim a name (chosen). A node that is deleted
// before that keeps its name for the claim's life. A look costs a request for each machine that is about to join, and
// nothing where none is.
const bindPeriod = time.Second

// answerRequest approves or denies one request.
func (c *cluster) answerRequest(ctx context.Context, client *kube.Client, r *certificatesv1.CertificateSigningRequest) {
	err := c.tryAnswer(ctx, client, r.DeepCopy())
	if apierrors.IsConflict(err) && c.o.elects() {
		return // another server has answered it
	}
	if err != nil && ctx.Err() == nil {
		c.logger.Warn("answer request for a certificate", "request", r.Name, "user", r.Spec.Username, "err", err)
	}
}

func (c *cluster) tryAnswer(ctx context.Context, client *kube.Client,
	r *certificatesv1.CertificateSigningRequest) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type:           certificatesv1.CertificateApproved,
		Status:         corev1.ConditionTrue,
		LastUpdateTime: metav1.Now(),
	}
	deny := "NotOfThisUser"
	request, why := readRequest(r)
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		facts, err := c.addressFacts(ctx, client)
		if err != nil {
			return err
		}
		if why == nil {
			why = servingcert.Judge(request, facts)
		}
		condition.Reason = "ServingCertificateOfNode"
		condition.Message = "plimsoll up: the node requests a certificate for its own name and addresses"
		deny = "NotOfThisNode"
	} else {
		if why == nil {
			why = clientcert.Judge(clientRequest(request))
		}
		condition.Reason = "RenewalOfUser"
		condition.Message = "plimsoll up: the user requests another certificate of its own"
	}
	if why != nil {
		condition.Type = certificatesv1.CertificateDenied
		condition.Reason = deny
		condition.Message = "plimsoll up: " + why.Error()
	}
	c.logger.Info("request for a certificate", "request", r.Name, "user", r.Spec.Username, "answer",
		condition.Type, "why", why)
	r.Status.Conditions = append(r.Status.Conditions, condition)
	return client.Update(ctx, kube.CertificateRequests, "", r.Name, r, r, "approval")
}

// clientRequest is a request for the certificate of a client.
func clientRequest(r servingcert.Request) clientcert.Request {
	return clientcert.Request{
		User:          r.User,
		CommonName:    r.CommonName,
		Organizations: r.Organizations,
		Names:         len(r.DNSNames) + len(r.Addresses) + r.OtherNames,
		Usages:        r.Usages,
	}
}

// addressFacts returns which addresses and names the nodes and the cluster's own servers have.
func (c *cluster) addressFacts(ctx context.Context, client *kube.Client) (servingcert.Facts, error) {
	facts := servingcert.Facts{Names: c.serverNames(), Nodes: map[string][]netip.Addr{}}
	for _, ip := range addresses(c.o.firstServiceIP(), net.ParseIP(c.o.BindAddress), net.ParseIP(c.o.NodeIP),
		net.ParseIP(c.o.advertiseAddress())) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			facts.Cluster = append(facts.Cluster, a.Unmap())
		}
	}
	nodes := &corev1.NodeList{}
	if err := client.List(ctx, kube.Nodes, "", metav1.ListOptions{}, nodes); err != nil {
		return facts, err
	}
	for _, n := range nodes.Items {
		for _, address := range n.Status.Addresses {
			if a, err := netip.ParseAddr(address.Address); err == nil {
				facts.Nodes[n.Name] = append(facts.Nodes[n.Name], a)
			}
		}
	}
	return facts, nil
}

// serverNames returns the DNS names in the certificates of the cluster's own servers, without the first node's.
func (l layout) serverNames() []string {
	var names []string
	for _, leaf := range l.plan().Leaves {
		for _, name := range leaf.DNSNames {
			if name != l.o.NodeName && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// readRequest translates a request for the core.
func readRequest(r *certificatesv1.CertificateSigningRequest) (servingcert.Request, error) {
	out := servingcert.Request{User: r.Spec.Username, Groups: r.Spec.Groups}
	block, rest := pem.Decode(r.Spec.Request)
	if block == nil || len(rest) > 0 {
		return out, errors.New("want one certificate request in PEM form")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return out, fmt.Errorf("certificate request: %w", err)
	}
	out.CommonName = parsed.Subject.CommonName
	out.Organizations = parsed.Subject.Organization
	out.DNSNames = parsed.DNSNames
	out.OtherNames = len(parsed.EmailAddresses) + len(parsed.URIs)
	for _, ip := range parsed.IPAddresses {
		a, ok := netip.AddrFromSlice(ip)
		if !ok {
			return out, fmt.Errorf("address %v: want 4 or 16 bytes", ip)
		}
		out.Addresses = append(out.Addresses, a)
	}
	for _, u := range r.Spec.Usages {
		out.Usages = append(out.Usages, string(u))
	}
	return out, nil
}
