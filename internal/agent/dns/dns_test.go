package dns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func pod(edit func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "u1"}}
	if edit != nil {
		edit(&p.Spec)
	}
	return p
}

func TestOf(t *testing.T) {
	long := strings.Repeat("a", 62) + "-b"
	override := "x.example.com"
	for _, c := range []struct {
		edit             func(*corev1.PodSpec)
		name             string
		hostname, domain string
		wantErr          string
	}{
		{hostname: "till"},
		{edit: func(s *corev1.PodSpec) { s.Hostname = "h"; s.Subdomain = "sub" }, hostname: "h",
			domain: "sub.shop.svc.cluster.local"},
		{name: long, hostname: strings.Repeat("a", 62)},
		{edit: func(s *corev1.PodSpec) { s.HostnameOverride = &override; s.Subdomain = "sub" }, hostname: "x.example.com"},
		{edit: func(s *corev1.PodSpec) { s.Hostname = "Not_a_label" },
			wantErr: `pod Hostname "Not_a_label" is not a valid DNS label`},
		{edit: func(s *corev1.PodSpec) { s.Subdomain = "a.b" }, wantErr: `pod Subdomain "a.b" is not a valid DNS label`},
		{name: strings.Repeat("-", 70), wantErr: "was invalid"},
	} {
		p := pod(c.edit)
		if c.name != "" {
			p.Name = c.name
		}
		hostname, domain, err := Of(p, "cluster.local")
		if hostname != c.hostname || domain != c.domain || (err == nil) != (c.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%+v: %q %q %v", c, hostname, domain, err)
		}
	}
}

func TestHostsFile(t *testing.T) {
	aliases := []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"a", "b"}}}
	const common = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	const added = "\n# Entries added by HostAliases.\n192.0.2.9\ta\tb\n"
	for want, got := range map[string][]byte{
		"# Kubernetes-managed hosts file.\n" + common +
			"10.1.0.7\ttill\n": HostsFile([]string{"10.1.0.7"}, "till", "", nil),
		"# Kubernetes-managed hosts file.\n" + common + "10.1.0.7\ttill.sub\ttill\nfd00::7\ttill.sub\ttill\n" +
			added: HostsFile([]string{"10.1.0.7", "fd00::7"}, "till", "sub", aliases),
		"# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n" +
			added: HostNetworkHostsFile([]byte("127.0.0.1\tlocalhost\n"), aliases),
	} {
		if string(got) != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// show prints a resolver configuration on one line.
func show(d *runtimeapi.DNSConfig) string {
	return strings.Join(d.Servers, ",") + " | " + strings.Join(d.Searches, ",") + " | " + strings.Join(d.Options, ",")
}

func TestDNSConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# comment\nsearch old.example\nnameserver 192.0.2.53\n  nameserver 192.0.2.54\nsearch corp.example. . lan\n" +
		"options ndots:1 rotate\noptions ndots:2\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	value := "3"
	r := Resolver{ClusterDomain: "cluster.local", ClusterDNS: []string{"10.96.0.10"}, ResolvConf: file}
	const cluster = "10.96.0.10 | shop.svc.cluster.local,svc.cluster.local,cluster.local,corp.example,lan | ndots:5"
	const host = "192.0.2.53,192.0.2.54 | corp.example,lan | ndots:2,rotate"
	for _, c := range []struct {
		name     string
		r        Resolver
		edit     func(*corev1.PodSpec)
		want     string
		warnings string
		wantErr  string
	}{
		{name: "ClusterFirst", r: r, edit: func(s *corev1.PodSpec) { s.DNSPolicy = "ClusterFirst" }, want: cluster},
		{name: "absent is ClusterFirst", r: r, want: cluster},
		{name: "ClusterFirst on the host's network", r: r,
			edit: func(s *corev1.PodSpec) { s.DNSPolicy = "ClusterFirst"; s.HostNetwork = true }, want: host},
		{name: "ClusterFirstWithHostNet", r: r,
			edit: func(s *corev1.PodSpec) { s.DNSPolicy = "ClusterFirstWithHostNet"; s.HostNetwork = true }, want: cluster},
		{name: "Default", r: r, edit: func(s *corev1.PodSpec) { s.DNSPolicy = "Default" }, want: host},
		{name: "None", r: r, edit: func(s *corev1.PodSpec) {
			s.DNSPolicy = "None"
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.1"}, Searches: []string{"a"},
				Options: []corev1.PodDNSConfigOption{{Name: "use-vc"}}}
		}, want: "1.1.1.1 | a | use-vc"},
		{name: "merge", r: r, edit: func(s *corev1.PodSpec) {
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"lan", "a"},
				Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}, {Name: "edns0"}}}
		},
			want: "10.96.0.10,1.1.1.1 | shop.svc.cluster.local,svc.cluster.local,cluster.local,corp.example,lan,a | ndots:3," +
				"edns0"},
		{name: "no cluster DNS", r: Resolver{ResolvConf: file}, want: host, warnings: "MissingClusterDNS"},
		{name: "no resolv.conf", r: Resolver{NodeIPs: []string{"192.0.2.1", "fd00::1"}},
			edit: func(s *corev1.PodSpec) { s.DNSPolicy = "Default" }, want: "127.0.0.1,::1 | . | "},
		{name: "too many servers", r: r, edit: func(s *corev1.PodSpec) {
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}}
		},
			want: "10.96.0.10,1.1.1.1,2.2.2.2 | shop.svc.cluster.local,svc.cluster.local,cluster.local,corp.example,lan | " +
				"ndots:5",
			warnings: "DNSConfigForming"},
		{name: "a domain that is none", r: r, edit: func(s *corev1.PodSpec) {
			s.DNSPolicy = "None"
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{strings.Repeat("x", 254),
				"a"}}
		}, want: "1.1.1.1 | a | ", warnings: "DNSConfigForming"},
		{name: "unreadable", r: Resolver{ResolvConf: file + ".none", ClusterDNS: []string{"10.96.0.10"}},
			wantErr: "read resolver configuration"},
		{name: "unknown policy", r: r, edit: func(s *corev1.PodSpec) { s.DNSPolicy = "Banana" },
			wantErr: "invalid DNSPolicy=Banana"},
	} {
		dns, warnings, err := c.r.DNSConfig(pod(c.edit))
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := show(dns); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		var reasons []string
		for _, w := range warnings {
			reasons = append(reasons, w.Reason)
		}
		if strings.Join(reasons, ",") != c.warnings {
			t.Errorf("%s: warnings %v", c.name, warnings)
		}
	}
}

func TestSearchBytes(t *testing.T) {
	var searches []string
	for range 20 {
		searches = append(searches, strings.Repeat("a", 200)+string(rune('a'+len(searches))))
	}
	dns := &runtimeapi.DNSConfig{Searches: searches}
	if w := limit(dns); len(w) != 1 || len(dns.Searches) != 10 || len(strings.Join(dns.Searches, " ")) > searchBytesMax {
		t.Errorf("%d searches, %v", len(dns.Searches), w)
	}
}

func FuzzResolvConf(f *testing.F) {
	cost.Attack(f, "nameserver 1.1.1.1\nsearch a b.\noptions x:y\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		dns, err := parseResolvConf(text)
		if err != nil {
			return
		}
		limit(dns)
		if len(dns.Servers) > serversMax || len(dns.Searches) > searchesMax ||
			len(strings.Join(dns.Searches, " ")) > searchBytesMax {
			t.Errorf("beyond the limits: %v", dns)
		}
	})
}

// TestKernel: the domain is part of the name only if the pod asks for that and has one. The name is never cut.
func TestKernel(t *testing.T) {
	yes := true
	no := false
	long := strings.Repeat("s", 50)
	for name, c := range map[string]struct {
		subdomain string
		fqdn      *bool
		want      string
	}{
		"not asked":    {"sub", nil, "web"},
		"declined":     {"sub", &no, "web"},
		"asked":        {"sub", &yes, "web.sub.shop.svc.cluster.local"},
		"no subdomain": {"", &yes, "web"},
		"too long":     {long, &yes, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec: corev1.PodSpec{Subdomain: c.subdomain, SetHostnameAsFQDN: c.fqdn}}
		got, err := Kernel(pod, "cluster.local")
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
