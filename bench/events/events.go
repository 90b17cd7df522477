// Package events waits until a scheduler has written all its Events. Binds are the first half of its work, Events the
// other; a scheduler that delays them is not cheaper for it.
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
	// lookEvery is how often Events are counted. Chosen: a count makes etcd walk its index, which takes some
	// milliseconds for 50,000.
	lookEvery = 500 * time.Millisecond
	// quiet is how long no Event must arrive before all count as written. Chosen: kube-scheduler writes them
	// continuously; ours delays them behind its binds and then writes them at once. Neither pauses for seconds.
	quiet = 4 * time.Second
	// limit bounds the wait; it matters only if something hangs.
	limit = 15 * time.Minute
)

// Drained is the state when a scheduler had written its Events.
type Drained struct {
	Events int64     // the number in the cluster
	At     time.Time // when the last of them was counted
	CPU    float64   // seconds of CPU that the process had used by then
}

// Count returns how many Events the cluster has.
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

// Wait returns when no Event has arrived for some seconds. pid is the scheduler's process.
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
