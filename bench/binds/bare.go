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

// runBare posts a binding for each pod that waits, to nodes in turn: no watch, no decision, no events.
func runBare(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(bareCommand, flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "")
	workers := f.Int("workers", 1, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return err
	}
	turns := make(chan int)
	errs := make(chan error, len(pods.Items))
	var group sync.WaitGroup
	for range *workers {
		group.Go(func() {
			for i := range turns {
				pod := &pods.Items[i]
				b := &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
					Target:     corev1.ObjectReference{Kind: "Node", Name: nodes.Items[i%len(nodes.Items)].Name},
				}
				if err := client.CoreV1().Pods(pod.Namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
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
		return err
	}
	<-ctx.Done() // whoever measures ends us
	return nil
}
