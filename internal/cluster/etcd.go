package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// An etcd that is not ours (--etcd-servers). kube-apiserver would wait for one that does not answer, and say so in its
// log only; and it would write into one that has another cluster's objects. So both are checked before it is started.

// elects reports whether another machine may run the same controllers: they elect leaders then.
func (o *Options) elects() bool { return len(o.EtcdServers) > 0 && o.shared() }

// etcdArgs are the flags of kube-apiserver for its etcd.
func (b builder) etcdArgs() []string {
	if len(b.o.EtcdServers) == 0 {
		return []string{"--etcd-servers=unix://" + b.etcdSocket()}
	}
	args := []string{"--etcd-servers=" + strings.Join(b.o.EtcdServers, ",")}
	for _, f := range [][2]string{
		{"etcd-cafile", b.o.EtcdCAFile}, {"etcd-certfile", b.o.EtcdCertFile}, {"etcd-keyfile", b.o.EtcdKeyFile},
	} {
		if f[1] != "" {
			args = append(args, "--"+f[0]+"="+f[1])
		}
	}
	return args
}

// etcdTimeout bounds the wait for an etcd that does not answer at all (chosen).
const etcdTimeout = 3 * time.Second

// checkEtcd checks that one of --etcd-servers answers as an etcd, with the certificates that the options name.
func (o *Options) checkEtcd() error {
	if len(o.EtcdServers) == 0 {
		return nil
	}
	config, err := o.etcdTLS()
	if err != nil {
		return err
	}
	var problems []error
	for _, server := range o.EtcdServers {
		err := askEtcd(server, config)
		if err == nil {
			return nil
		}
		problems = append(problems, fmt.Errorf("reach etcd: --etcd-servers %s: %w%s", server, err, o.etcdHint(err)))
	}
	return errors.Join(problems...)
}

// etcdTLS returns the settings of a connection to etcd.
func (o *Options) etcdTLS() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.EtcdCAFile != "" {
		text, err := os.ReadFile(o.EtcdCAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--etcd-cafile %s: want certificates in PEM form", o.EtcdCAFile)
		}
	}
	if o.EtcdCertFile != "" && o.EtcdKeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.EtcdCertFile, o.EtcdKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile %s, --etcd-keyfile %s: %w", o.EtcdCertFile, o.EtcdKeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// etcdVersionMax bounds what is read of an answer, in bytes; etcd's has about 70.
const etcdVersionMax = 4096

// askEtcd asks an etcd for its version, which it tells every client that it accepts.
func askEtcd(server string, config *tls.Config) error {
	u, err := url.Parse(server)
	if err != nil {
		return err // Validate has reported it
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	if u.Scheme == "unix" {
		path := u.Path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		u = &url.URL{Scheme: "http", Host: "etcd"}
	}
	answer, err := (&http.Client{Transport: transport, Timeout: etcdTimeout}).Get(u.JoinPath("version").String())
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			return inner.Err // without the URL, which the caller names
		}
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, etcdVersionMax))
	if err != nil {
		return err
	}
	var version struct {
		Server string `json:"etcdserver"`
	}
	if answer.StatusCode != http.StatusOK || json.Unmarshal(text, &version) != nil || version.Server == "" {
		return fmt.Errorf("%w: %s", errNoEtcd, answer.Status)
	}
	return nil
}

var errNoEtcd = errors.New("it does not answer as an etcd does")

// etcdHint says what to do about an error of askEtcd.
func (o *Options) etcdHint(err error) string {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown) && o.EtcdCAFile == "":
		return " (name its authority with --etcd-cafile)"
	case errors.As(err, &unknown):
		return fmt.Sprintf(" (--etcd-cafile %s is not the authority of its certificate)", o.EtcdCAFile)
	case errors.Is(err, http.ErrSchemeMismatch):
		return " (it does not speak TLS: is it http://?)"
	case strings.Contains(err.Error(), "remote error: tls:") && o.EtcdCertFile == "":
		return " (it wants a client certificate: --etcd-certfile, --etcd-keyfile)"
	case strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Sprintf(" (it does not accept --etcd-certfile %s)", o.EtcdCertFile)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return " (does etcd run there?)"
	case errors.Is(err, errNoEtcd):
		return " (want the URL for clients, whose port is 2379 by default)"
	}
	return ""
}

// clusterID is the file with the cluster's identity: the UID of its namespace kube-system.
func (l layout) clusterID() string { return l.state("cluster-id") }

func (l layout) keptClusterID() (string, error) {
	text, err := os.ReadFile(l.clusterID())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

// keepClusterID notes the cluster's identity, by which its etcd is recognized.
func (c *cluster) keepClusterID(ctx context.Context, client *kube.Client) error {
	system := &corev1.Namespace{}
	if err := client.Get(ctx, kube.Namespaces, "", metav1.NamespaceSystem, system); err != nil {
		return fmt.Errorf("note the cluster's identity: %w", err)
	}
	_, err := durable.WriteIfChanged(c.clusterID(), []byte(string(system.UID)+"\n"))
	return err
}

// etcdReadTimeout bounds one read of etcd, which needs a majority of its members (chosen).
const etcdReadTimeout = 10 * time.Second

// systemKey is where kube-apiserver keeps namespace kube-system in etcd (its --etcd-prefix is /registry by default).
const systemKey = "/registry/namespaces/" + metav1.NamespaceSystem

// checkObjects returns an error if the etcd of the options has other objects than this cluster's.
func (c *cluster) checkObjects(ctx context.Context) error {
	if len(c.o.EtcdServers) == 0 {
		return nil
	}
	value, err := c.readEtcd(ctx, systemKey, "--print-value-only")
	if err != nil {
		return err
	}
	id, err := c.keptClusterID()
	if err != nil {
		return err
	}
	_, err = os.Stat(c.etcdData() + "/member")
	found := etcdFacts{
		System:    value,
		ClusterID: id,
		Known:     c.exists(),
		OwnData:   err == nil,
	}
	if err := found.judge(); err != nil {
		return fmt.Errorf("use etcd at %s: %w", strings.Join(c.o.EtcdServers, ","), err)
	}
	return c.checkServerPort(ctx)
}

// readEtcd runs `etcdctl get` on the etcd of the options.
func (c *cluster) readEtcd(ctx context.Context, key string, flags ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*etcdReadTimeout)
	defer cancel()
	args := append([]string{"etcdctl", "get", key, "--command-timeout=" + etcdReadTimeout.String(),
		"--endpoints=" + strings.Join(c.o.EtcdServers, ",")}, flags...)
	for _, f := range [][2]string{{"cacert", c.o.EtcdCAFile}, {"cert", c.o.EtcdCertFile}, {"key", c.o.EtcdKeyFile}} {
		if f[1] != "" {
			args = append(args, "--"+f[0]+"="+f[1])
		}
	}
	var said bytes.Buffer
	command := exec.CommandContext(ctx, c.build.controlplane, args...)
	command.Env = environment()
	command.Stderr = &said
	value, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("read etcd at %s: %w: %s (it answers only while most of its members run, and a user of its "+
			"own needs rights to /registry)", strings.Join(c.o.EtcdServers, ","), err, lastLine(said.String()))
	}
	return value, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// etcdFacts are what is known before a control plane is started on an etcd that is not ours.
type etcdFacts struct {
	System    []byte // namespace kube-system as etcd has it; empty: it has no cluster's objects
	ClusterID string // of this instance; empty: not known
	Known     bool   // this instance has been up before
	OwnData   bool   // the instance's state directory has an etcd's data
}

// judge returns an error if the objects in etcd are not this cluster's.
func (f etcdFacts) judge() error {
	system := bytes.TrimSpace(f.System)
	switch {
	case len(system) > 0 && f.ClusterID != "" && bytes.Contains(system, []byte(f.ClusterID)):
		return nil
	case len(system) > 0 && f.ClusterID != "":
		return fmt.Errorf("it has the objects of another cluster: in this one, namespace kube-system has the UID %s: check "+
			"--etcd-servers, or choose another --instance", f.ClusterID)
	case len(system) > 0 && !f.Known:
		return errors.New("it has the objects of a cluster, whose keys this state directory does not have: join as a " +
			"further server with the command that `plimsoll token create --server` prints on a server of that cluster, " +
			"or empty this etcd first")
	case len(system) == 0 && f.ClusterID != "" && f.OwnData:
		return errors.New("it is empty, and this cluster's objects are in the etcd that ran here: move them first " +
			"(docs/servers.md), or begin a new cluster after `plimsoll down --purge`")
	case len(system) == 0 && f.ClusterID != "":
		return errors.New("it is empty, and this cluster has objects: check --etcd-servers, restore etcd from a " +
			"snapshot, or begin a new cluster after `plimsoll down --purge`")
	}
	return nil
}
