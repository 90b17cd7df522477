// Package events waits until a scheduler has written all that it had to say: binds are the first half of its work,
// Events the other, and a scheduler that puts them off is not cheaper for it.
package events

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

const (
	// lookEvery is how often Events are counted. Chosen: a count costs etcd a walk over its index, some milliseconds
	// for 50,000.
	lookEvery = 500 * time.Millisecond
	// quiet is for how long no Event may come until all are taken to be written. Chosen: kube-scheduler writes them
	// as it goes, ours puts them behind its binds and then writes them at once; none pauses for seconds.
	quiet = 4 * time.Second
	// limit bounds the wait; it only bounds what hangs.
	limit = 15 * time.Minute
)

// Drained is what there was when a scheduler had written its Events.
type Drained struct {
	Events int64     // in the cluster
	At     time.Time // the look that found the last of them
	CPU    float64   // seconds that the process had used by then
}

// Count is how many Events the cluster has.
func Count(ctx context.Context, client kubernetes.Interface) (int64, error) {
	list, err := client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("count Events: %w", err)
	}
	n := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		n += *list.RemainingItemCount
	}
	return n, nil
}

// Wait returns when no Event has come for some seconds. pid is the scheduler's process.
func Wait(ctx context.Context, client kubernetes.Interface, pid int) (d Drained, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d.Events = -1
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		n, err := Count(ctx, client)
		if err != nil {
			return d, err
		}
		now := time.Now()
		if n != d.Events {
			d.Events, d.At = n, now
			if d.CPU, err = record.CPUSeconds(pid); err != nil {
				return d, err
			}
		}
		if now.Sub(d.At) >= quiet {
			return d, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return d, fmt.Errorf("wait for Events: %d, and more came for %v: %w", d.Events, limit, context.Cause(ctx))
		}
	}
}
