package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// bareCommand makes this program the bare loop: a process of its own, as the others are.
const bareCommand = "bare-loop"

// bareFlags are the bare loop's.
type bareFlags struct {
	kubeconfig string
	workers    int
}

func parseBare(args []string) (b bareFlags, err error) {
	f := flag.NewFlagSet(bareCommand, flag.ContinueOnError)
	f.StringVar(&b.kubeconfig, "kubeconfig", "", "how to reach the API server")
	f.IntVar(&b.workers, "workers", 1, "bindings in flight")
	return b, f.Parse(args)
}

// runBare posts a binding for each pod that waits, to nodes in turn: no watch, no decision, no events.
func runBare(ctx context.Context, b bareFlags) (bool, error) {
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return false, err
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false, err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return false, err
	}
	turns := make(chan int)
	errs := make(chan error, len(pods.Items))
	var group sync.WaitGroup
	for range b.workers {
		group.Go(func() {
			for i := range turns {
				pod := &pods.Items[i]
				binding := &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
					Target:     corev1.ObjectReference{Kind: "Node", Name: nodes.Items[i%len(nodes.Items)].Name},
				}
				if err := client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
					errs <- fmt.Errorf("bind %s: %w", pod.Name, err)
				}
			}
		})
	}
	for i := range pods.Items {
		turns <- i
	}
	close(turns)
	group.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if err := errors.Join(all...); err != nil {
		return false, err
	}
	<-ctx.Done() // whoever measures ends us
	return true, nil
}
