package agent

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// services holds the Services that containers get environment variables for.
type services struct {
	store      cache.Store
	controller cache.Controller
}

func watchServices(c *kube.Client) services {
	store, controller := c.Informer(kube.Services, kube.Selection{}, cache.ResourceEventHandlerFuncs{})
	return services{store: store, controller: controller}
}

// in returns the Services of a namespace. Until all of them were listed once, it returns an error.
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
