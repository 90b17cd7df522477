package agent

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// servedPods lets the server ask about pods.
type servedPods struct{ *pods.Runner }

func (s servedPods) Sandbox(namespace, name string, uid types.UID) (string, error) {
	id, err := s.SandboxID(namespace, name, uid)
	return id, notFound(err)
}

func (s servedPods) Container(namespace, name, container string, uid types.UID, previous bool) (server.Container, error) {
	run, err := s.ContainerRun(namespace, name, container, uid, previous)
	if err != nil {
		return server.Container{}, notFound(err)
	}
	c := server.Container{ID: run.ID, LogPath: run.LogPath, State: server.Exited, Attempt: run.Attempt, Tty: run.TTY, Stdin: run.Stdin, StartedAt: run.StartedAt}
	if run.Running {
		c.State = server.Running
	}
	return c, nil
}

// notFound makes the server answer 404 where the pods side says that there is no such thing.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNotFound) {
		return fmt.Errorf("%w: %w", server.ErrNotFound, err)
	}
	return err
}

// services keeps the services that announce themselves in containers' environments.
type services struct {
	store      cache.Store
	controller cache.Controller
}

func watchServices(c *kube.Client) services {
	store, controller := c.Informer(kube.Services, kube.Selection{}, cache.ResourceEventHandlerFuncs{})
	return services{store, controller}
}

// in returns the services of a namespace, once all are known.
func (s services) in(namespace string) ([]*corev1.Service, error) {
	if !s.controller.HasSynced() {
		return nil, errors.New("services are not known yet: the API server has not answered")
	}
	var list []*corev1.Service
	for _, obj := range s.store.List() {
		if service := obj.(*corev1.Service); service.Namespace == namespace {
			list = append(list, service)
		}
	}
	return list, nil
}
