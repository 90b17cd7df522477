package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// frame returns one event as apimachinery's own serializers write it.
func frame(t testing.TB, kind string, object runtime.Object) []byte {
	t.Helper()
	var raw, event bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &raw); err != nil {
		t.Fatal(err)
	}
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw.Bytes()}}
	if err := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme).Encode(&e, &event); err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(event.Len())), event.Bytes()...)
}

func lease(name, version string, renewed time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "kube-node-lease", ResourceVersion: version, Generation: 7,
			OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: name}}, Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "agent", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32)},
	}
	if !renewed.IsZero() {
		l.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
	}
	return l
}

// A frame that apimachinery writes is read correctly, whatever other fields the lease has.
func TestParseRenewal(t *testing.T) {
	when := time.Date(2026, 11, 20, 15, 0, 0, 123456000, time.UTC)
	for _, test := range []struct {
		kind string
		l    *coordinationv1.Lease
		want leaseEvent
	}{
		{"ADDED", lease("n1", "5", when), leaseEvent{"n1", "5", unit.WallOf(when), false}},
		{"MODIFIED", lease("n1", "6", time.Time{}), leaseEvent{"n1", "6", 0, false}},
		{"MODIFIED", lease("n1", "6", time.Unix(-5, 0)), leaseEvent{"n1", "6", unit.WallOf(time.Unix(-5, 0)), false}},
		{"DELETED", lease("n1", "7", when), leaseEvent{"n1", "7", unit.WallOf(when), true}},
		{"BOOKMARK", lease("", "8", time.Time{}), leaseEvent{"", "8", 0, false}},
	} {
		got, err := parseRenewal(frame(t, test.kind, test.l)[frameHead:])
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v, want %+v", test.kind, got, err, test.want)
		}
	}
}

func TestParseRenewalRefuses(t *testing.T) {
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: 410,
		Reason: "Expired", Message: "too old"}
	whole := frame(t, "ADDED", lease("n1", "5", time.Now()))[frameHead:]
	for name, test := range map[string]struct {
		frame []byte
		want  string
	}{
		"expired":  {frame(t, "ERROR", gone)[frameHead:], "too old"},
		"kind":     {frame(t, "MOVED", lease("n1", "5", time.Now()))[frameHead:], "not a kind of event"},
		"version":  {frame(t, "ADDED", lease("n1", "", time.Now()))[frameHead:], "no resourceVersion"},
		"cut":      {whole[:len(whole)-3], "read event"},
		"empty":    {nil, "does not begin with"},
		"no magic": {bytes.Replace(whole, objectMagic, []byte("JSON"), 1), "does not begin with"},
	} {
		if e, err := parseRenewal(test.frame); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v, want an error with %q", name, e, err, test.want)
		}
	}
	if _, err := readFrame(bufio.NewReader(strings.NewReader(`{"type":"ADDED"}`)), nil); err == nil ||
		!strings.Contains(err.Error(), "not protobuf") {
		t.Errorf("JSON: %v", err)
	}
	if _, err := readFrame(bufio.NewReader(bytes.NewReader([]byte{0, 0, 0, 9, 1})), nil); err == nil ||
		!strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("cut: %v", err)
	}
}

func FuzzParseRenewal(f *testing.F) {
	cost.Attack(f, frame(f, "ADDED", lease("n1", "5", time.Now()))[frameHead:])
	cost.Attack(f, frame(f, "BOOKMARK", lease("", "5", time.Time{}))[frameHead:])
	f.Fuzz(func(t *testing.T, b []byte) {
		defer cost.Spend(t, len(b))()
		if e, err := parseRenewal(b); err == nil && e.version == "" {
			t.Errorf("%+v has no version", e)
		}
	})
}

// leaseServer serves lists and watches from a script: each watch sends its frames, then ends.
type leaseServer struct {
	t       *testing.T
	mu      sync.Mutex
	lists   []coordinationv1.LeaseList
	watches [][]byte
	from    []string // resourceVersion of each requested watch
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Get("watch") == "" {
		list := s.lists[0]
		if len(s.lists) > 1 {
			s.lists = s.lists[1:]
		}
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		list.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(&list, w); err != nil {
			s.t.Error(err)
		}
		return
	}
	s.from = append(s.from, r.URL.Query().Get("resourceVersion"))
	if len(s.watches) == 0 {
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
		return
	}
	frames := s.watches[0]
	s.watches = s.watches[1:]
	if _, err := w.Write(frames); err != nil {
		s.t.Error(err)
	}
}

// A watch that ends is continued at its version. If that is too old, a list follows, which reports deleted leases.
func TestFollow(t *testing.T) {
	when := time.Unix(1000, 0)
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: 410,
		Reason: "Expired", Message: "too old"}
	s := &leaseServer{t: t,
		lists: []coordinationv1.LeaseList{
			{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []coordinationv1.Lease{*lease("a", "3", when),
				*lease("b", "4", when)}},
			{ListMeta: metav1.ListMeta{ResourceVersion: "20"}, Items: []coordinationv1.Lease{*lease("a", "15",
				when.Add(3*time.Millisecond))}},
		},
		watches: [][]byte{
			slices.Concat(frame(t, "MODIFIED", lease("a", "11", when.Add(time.Millisecond))),
				frame(t, "ADDED", lease("c", "12", when)), frame(t, "BOOKMARK", lease("", "13", time.Time{}))),
			slices.Concat(frame(t, "DELETED", lease("c", "14", when)), frame(t, "ERROR", gone)),
		},
	}
	server := httptest.NewServer(s)
	defer server.Close()
	client, err := NewClientForConfig(&rest.Config{Host: server.URL})
	if err == nil {
		client, err = client.Gathering(GatherRenewals)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var told []string
	lists := 0
	r := client.NewRenewals(func(batch []Renewal) {
		for _, each := range batch {
			told = append(told, fmt.Sprintf("%s %d %v", each.Name, each.Renewed.Sub(unit.WallOf(when)), each.Gone))
		}
		if slices.Contains(told, "b -1000000000000 true") {
			cancel()
		}
	})
	r.Follow(ctx, func() { lists++ })
	want := []string{"a 0 false", "b 0 false", "a 1000000 false", "c 0 false", "c 0 true", "a 3000000 false",
		"b -1000000000000 true"}
	if !slices.Equal(told, want) || lists != 1 {
		t.Errorf("reported %q, listed %d times, want %q and once", told, lists, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := []string{"10", "13"}; !slices.Equal(s.from[:2], want) {
		t.Errorf("watched from %q, want %q first", s.from, want)
	}
}

// The connection is read once per period, however small the pieces are that arrive. If they fill the buffer, it is read
// at once.
func TestGather(t *testing.T) {
	for _, test := range []struct {
		piece int // bytes
		waits int
		// net.Pipe returns one write per read; with the second case the first read fills the buffer
	}{{8, 9}, {gatherBuffer, 1}} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			dial := gathering(GatherRenewals, func(context.Context, string, string) (net.Conn, error) { return near, nil })
			conn, err := dial(t.Context(), "tcp", "x")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for range 10 {
					far.Write(make([]byte, test.piece)) //nolint:errcheck // the reader fails if it is short
				}
				far.Close()
			}()
			began := time.Now()
			all, err := io.ReadAll(conn)
			if err != nil || len(all) != 10*test.piece {
				t.Errorf("%d bytes, %v", len(all), err)
			}
			took := time.Since(began)
			least := time.Duration(test.waits-1) * GatherRenewals
			most := time.Duration(test.waits+2) * GatherRenewals
			if took < least || took > most {
				t.Errorf("pieces of %d bytes: took %v, want %d times %v", test.piece, took, test.waits, GatherRenewals)
			}
		})
	}
}
