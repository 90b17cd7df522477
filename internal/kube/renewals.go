package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Renewal is the content of a node's lease.
type Renewal struct {
	Name    string
	Renewed unit.Wall // spec.renewTime; zero: the lease has none
	Gone    bool      // the lease was deleted
}

// Pauses before the leases are listed again after a failure, doubled from the first to the longest, with jitter of one
// half.
const (
	renewalsFirst = 500 * time.Millisecond
	renewalsMax   = 10 * time.Second
)

// watchRenewalsFor is the timeout that is requested for a watch, between this and twice this, as client-go's reflector
// does, so that many watchers do not come back at the same moment. Chosen: the reflector's 5 to 10 minutes.
const watchRenewalsFor = 5 * time.Minute

// Renewals watches the leases of nodes.
//
// A cluster of 5,000 nodes renews 500 leases per second, which is nearly all that a lifecycle controller receives. So
// this is not an Informer: it keeps no objects and reads three fields of each (renewals_wire.go). Give it a client that
// gathers (gather.go).
// Follow's goroutine owns a Renewals.
type Renewals struct {
	client rest.Interface
	handle func([]Renewal)
	known  map[string]bool // nodes whose lease was passed to handle and not reported as gone since
}

// NewRenewals prepares a watch. handle is called from one goroutine with the renewals that arrived together, in order.
func (c *Client) NewRenewals(handle func([]Renewal)) *Renewals {
	return &Renewals{client: c.REST(coordinationv1.SchemeGroupVersion), handle: handle, known: map[string]bool{}}
}

// Follow lists and watches the leases in the namespace of node leases until ctx ends, and passes all leases to handle
// first, then each change. After a watch was lost it lists again; leases that were deleted meanwhile are then reported
// as gone. listed is called after the first list.
func (f *Renewals) Follow(ctx context.Context, listed func()) {
	for pause := renewalsFirst; ctx.Err() == nil; {
		version, err := f.list(ctx)
		if err == nil {
			if listed != nil {
				listed()
				listed = nil
			}
			pause = renewalsFirst
			err = f.watch(ctx, version)
		}
		if ctx.Err() != nil {
			break
		}
		slog.Warn("node leases: watch lost, listing again", "err", err)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
		}
		pause = min(2*pause, renewalsMax)
	}
}

// list passes every lease to handle and returns the version to watch from.
func (f *Renewals) list(ctx context.Context) (version string, err error) {
	list, err := untilAnswered(ctx, func() (*coordinationv1.LeaseList, error) {
		list := &coordinationv1.LeaseList{}
		// "0" allows the server to answer from its cache, as for every informer; the watch brings what that lacks.
		o := metav1.ListOptions{ResourceVersion: "0"}
		return list, f.client.Get().Namespace(corev1.NamespaceNodeLease).Resource("leases").VersionedParams(&o,
			parameterCodec).Do(ctx).Into(list)
	})
	if err != nil {
		return "", err
	}
	batch := make([]Renewal, 0, len(list.Items))
	there := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		r := Renewal{Name: list.Items[i].Name}
		if t := list.Items[i].Spec.RenewTime; t != nil {
			r.Renewed = unit.WallOf(t.Time)
		}
		there[r.Name] = true
		batch = append(batch, r)
	}
	for name := range f.known {
		if !there[name] {
			batch = append(batch, Renewal{Name: name, Gone: true})
		}
	}
	f.known = there
	f.handle(batch)
	return list.ResourceVersion, nil
}

// watch follows the leases from version on, over as many watches as necessary, until one fails.
func (f *Renewals) watch(ctx context.Context, version string) error {
	for ctx.Err() == nil {
		began := time.Now()
		next, err := f.watchOnce(ctx, version)
		switch {
		case err != nil:
			return err
		case next == version && time.Since(began) < time.Second:
			return errors.New("the server ended the watch at once, without an event")
		}
		version = next
	}
	return ctx.Err()
}

// watchOnce follows one watch to its end and returns the version that it reached. An end that the server chose is no
// error.
func (f *Renewals) watchOnce(ctx context.Context, version string) (string, error) {
	seconds := int64((watchRenewalsFor + rand.N(watchRenewalsFor)) / time.Second)
	o := metav1.ListOptions{Watch: true, ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}
	body, err := untilAnswered(ctx, func() (io.ReadCloser, error) {
		return f.client.Get().Namespace(corev1.NamespaceNodeLease).Resource("leases").VersionedParams(&o, parameterCodec).
			SetHeader("Accept", "application/vnd.kubernetes.protobuf;stream=watch").Stream(ctx)
	})
	if err != nil {
		return version, err
	}
	defer body.Close()
	stream := bufio.NewReaderSize(body, gatherBuffer)
	var batch []Renewal
	var frame []byte
	for {
		if frame, err = readFrame(stream, frame); err != nil {
			f.handle(batch)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return version, err
		}
		e, err := parseRenewal(frame)
		if err != nil {
			f.handle(batch)
			return version, err
		}
		version = e.version
		if e.name != "" {
			batch = append(batch, Renewal{Name: e.name, Renewed: e.renewed, Gone: e.gone})
			f.known[e.name] = true
			if e.gone {
				delete(f.known, e.name)
			}
		}
		if stream.Buffered() < frameHead && len(batch) > 0 { // all that arrived together was read
			f.handle(batch)
			batch = nil
		}
	}
}

// errorOfWatch translates an error event of a watch. Most often it says that the version is too old.
func errorOfWatch(status metav1.Status) error {
	if status.Status != metav1.StatusFailure {
		return fmt.Errorf("watch node leases: error event without status Failure: code %d", status.Code)
	}
	if status.Code == http.StatusGone {
		return apierrors.NewResourceExpired(status.Message)
	}
	return &apierrors.StatusError{ErrStatus: status}
}
