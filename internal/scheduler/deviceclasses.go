package scheduler

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// deviceClasses are the extended resources that device classes serve. Dynamic resource allocation is not supported. If
// a pod requests such a resource and no node has a device plugin for it, the failure names the class, because
// "Insufficient" alone would be misleading. Only the scheduling loop uses it.
type deviceClasses struct {
	resourceOf map[string]string // by class
	classOf    map[string]string // by resource
}

// set records the resource that a class serves; empty: none, or the class is deleted.
func (d *deviceClasses) set(class, resource string) {
	if d.resourceOf == nil {
		d.resourceOf, d.classOf = map[string]string{}, map[string]string{}
	}
	if before := d.resourceOf[class]; before != "" && d.classOf[before] == class {
		delete(d.classOf, before)
	}
	delete(d.resourceOf, class)
	if resource != "" {
		d.resourceOf[class], d.classOf[resource] = resource, class
	}
}

// followClasses watches device classes, if the API server serves them.
func (m *loop) followClasses(ctx context.Context, client *kube.Client) cache.InformerSynced {
	const otherwise = "the API server serves no device classes"
	return whereServed(ctx, client, kube.DeviceClasses, otherwise, func() cache.Controller {
		return follow(m, client, kube.DeviceClasses, as[*resourcev1.DeviceClass], m.classSeen, byName(m.classGone))
	})
}

func (m *loop) classSeen(_ unit.Instant, c *resourcev1.DeviceClass) {
	resource := ""
	if c.Spec.ExtendedResourceName != nil {
		resource = *c.Spec.ExtendedResourceName
	}
	m.classes.set(c.Name, resource)
}

func (m *loop) classGone(_ unit.Instant, name string) { m.classes.set(name, "") }
