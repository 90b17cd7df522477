package cluster

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestTakePort: a further server has the port of the others, and is told so if it asks for another one.
func TestTakePort(t *testing.T) {
	for _, c := range []struct {
		name          string
		asked, shared int // 0: not said
		want          int
		refused       string
	}{
		{"the others'", 0, 7443, 7443, ""},
		{"the same", 7443, 7443, 7443, ""},
		{"an older release does not say", 0, 0, DefaultAPIServerPort, ""},
		{"an older release does not say, the user does", 7443, 0, 7443, ""},
		{"another", 6443, 7443, 6443, "--apiserver-port 6443: the servers of this cluster have port 7443"},
	} {
		o := testOptions(t)
		o.APIServerPort = c.asked
		k := &cluster{layout: layout{o}}
		err := k.takePort(c.shared)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
		if k.o.APIServerPort != c.want {
			t.Errorf("%s: port %d, want %d", c.name, k.o.APIServerPort, c.want)
		}
	}
	if _, shared := firstServer(t); shared.APIServerPort != 7443 {
		t.Errorf("the first server shares port %d, want 7443", shared.APIServerPort)
	}
}

// TestMovedFrom: machines that joined are told of another URL, and only those.
func TestMovedFrom(t *testing.T) {
	o := testOptions(t)
	o.BindAddress, o.NodeIP, o.NodeName = "192.0.2.10", "192.0.2.10", "one"
	testBuilder(t, o)
	if got := (layout{o}).movedFrom(); got != "" {
		t.Errorf("at the first start: %q", got)
	}
	if err := o.save(); err != nil {
		t.Fatal(err)
	}
	if got := (layout{o}).movedFrom(); got != "" {
		t.Errorf("without a change: %q", got)
	}
	before := o.publicURL()
	o.APIServerPort++
	if got := (layout{o}).movedFrom(); got != before {
		t.Errorf("with another port: %q, want %q", got, before)
	}
	o.BindAddress = "127.0.0.1"
	if got := (layout{o}).movedFrom(); got != "" {
		t.Errorf("where no machine can join any more: %q", got)
	}
	nodes := []corev1.Node{}
	for _, name := range []string{"one", "one-2", "hollow-7", "two", "one-3"} {
		nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if got := (layout{o}).joinedNodes(nodes, []localNode{{name: "one-2"}}); !slices.Equal(got, []string{"two", "one-3"}) {
		t.Errorf("joined: %q", got)
	}
}

// TestOtherServers: this server's own key does not count, nor do lines that are no keys.
func TestOtherServers(t *testing.T) {
	keys := "/registry/masterleases/192.0.2.10\n\n/registry/masterleases/2001:db8::1\n\nwarning\n"
	if got := otherServers(keys, "192.0.2.10"); !slices.Equal(got, []string{"2001:db8::1"}) {
		t.Errorf("others %q", got)
	}
	if got := otherServers(keys, "192.0.2.11"); len(got) != 2 {
		t.Errorf("to another server: %q", got)
	}
}

// storedSlice returns an EndpointSlice as kube-apiserver writes it to etcd.
func storedSlice(t testing.TB, ports ...int32) []byte {
	t.Helper()
	slice := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Port: &p})
	}
	raw, err := slice.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	object := runtime.Unknown{
		TypeMeta: runtime.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		Raw:      raw,
	}
	text, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(protobufPrefix), text...)
}

func TestPortOf(t *testing.T) {
	whole := storedSlice(t, 7443)
	for _, c := range []struct {
		name string
		text []byte
		want int
		bad  bool
	}{
		{"the servers' port", whole, 7443, false},
		{"no port", storedSlice(t), 0, false},
		{"no EndpointSlice", nil, 0, false},
		{"JSON", []byte(`{"ports":[{"port":7443}]}`), 0, true},
		{"half of it", whole[:len(whole)/2], 0, true},
	} {
		if got, err := portOf(c.text); got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
}

func FuzzPortOf(f *testing.F) {
	cost.Attack(f, string(storedSlice(f, 7443)))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if port, err := portOf([]byte(text)); err != nil && port != 0 {
			t.Errorf("port %d and an error: %v", port, err)
		}
	})
}
