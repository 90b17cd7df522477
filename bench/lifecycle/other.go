package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// otherCommand makes this program another client of the API server: a separate process, so that the harness's own load
// does not slow it.
const otherCommand = "other-client"

// otherFlags are the flags of the other client.
type otherFlags struct {
	kubeconfig, out string
	rate            int
}

func parseOther(args []string) (o otherFlags, err error) {
	f := flag.NewFlagSet(otherCommand, flag.ContinueOnError)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server")
	f.StringVar(&o.out, "out", "", "file of what was asked: when, what, how long it took")
	f.IntVar(&o.rate, "rate", 50, "requests a second")
	if err = f.Parse(args); err == nil && (o.rate < 1 || o.rate > otherRateMax) {
		err = fmt.Errorf("--rate %d: want 1 to %d", o.rate, otherRateMax)
	}
	return o, err
}

const (
	otherRateMax   = 200 // requests per second: more than this client sends reliably beside a measurement (chosen)
	otherNamespace = "other"
	otherObjects   = 50               // config maps of one KiB, all in one list
	otherTimeout   = 30 * time.Second // of a request; one that times out counts with this duration
	// otherInFlight bounds the requests in flight. Beyond it the client falls behind, which the result shows, since
	// durations count from when a request was due.
	otherInFlight = 200
)

// runOther sends requests at a steady rate, however long the answers take, until it is ended. Of four requests two are
// GETs, one is a LIST and one a PATCH. The duration of a request counts from when it was due.
func runOther(ctx context.Context, o otherFlags) (bool, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return false, err
	}
	config.QPS = -1
	config.Timeout = otherTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	if err := otherPrepare(ctx, client); err != nil {
		return false, err
	}
	file, err := os.Create(o.out)
	if err != nil {
		return false, err
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, otherInFlight)
	period := time.Second / time.Duration(o.rate)
	began := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		due := began.Add(time.Duration(i) * period)
		if err := record.Pause(ctx, time.Until(due)); err != nil {
			break
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			what, err := otherAsk(context.WithoutCancel(ctx), client, i)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(w, "%d %s %d %t\n", due.UnixNano(), what, time.Since(due).Nanoseconds(), err == nil)
		})
	}
	all.Wait()
	return true, w.Flush()
}

func otherName(i int) string { return fmt.Sprintf("object-%d", i%otherObjects) }

func otherPrepare(ctx context.Context, client *kubernetes.Clientset) error {
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherNamespace}}, metav1.CreateOptions{})
	for i := 0; i < otherObjects && (err == nil || apierrors.IsAlreadyExists(err)); i++ {
		_, err = client.CoreV1().ConfigMaps(otherNamespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: otherName(i)}, Data: map[string]string{"a": strings.Repeat("x", 1000)},
		}, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func otherAsk(ctx context.Context, client *kubernetes.Clientset, i int) (what string, err error) {
	maps := client.CoreV1().ConfigMaps(otherNamespace)
	switch i % 4 {
	case 1:
		_, err = maps.List(ctx, metav1.ListOptions{})
		return "list", err
	case 3:
		body := fmt.Sprintf(`{"data":{"i":"%d"}}`, i)
		_, err = maps.Patch(ctx, otherName(i), types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return "patch", err
	}
	_, err = maps.Get(ctx, otherName(i), metav1.GetOptions{})
	return "get", err
}

// asked is one request of the other client.
type asked struct {
	due  time.Time
	what string
	took time.Duration
	ok   bool
}

// readAsked reads the file of the other client, which has ended.
func readAsked(path string) (all []asked, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var due, took int64
		a := asked{}
		if _, err := fmt.Sscanf(line, "%d %s %d %t\n", &due, &a.what, &took, &a.ok); err != nil {
			return nil, fmt.Errorf("read %s: line %q: %w", path, line, err)
		}
		a.due, a.took = time.Unix(0, due), time.Duration(took)
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, errors.New("the other client asked nothing")
	}
	return all, nil
}
