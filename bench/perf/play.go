package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// player runs the operations of one workload.
type player struct {
	*workload
	*writer
	pods  *pods
	scale float64
	limit time.Duration // of each wait
	check func() error  // fails when the scheduler has ended
	use   func() (record.Usage, error)
	began serving // when measuring began
	spent serving // between the start and the end of measuring

	files      templates
	namespaces map[string]bool
	waits      map[string]int // pods that were created and not waited for, by namespace
	measured   []measure

	background sync.WaitGroup
	mu         sync.Mutex
	broken     []error // errors of background operations
}

// creators is how many requests create objects in parallel, as in upstream.
const creators = 30

// play runs all operations. It stops background operations at the end, and returns what was measured.
func (p *player) play(ctx context.Context) (measure, error) {
	p.namespaces, p.waits = map[string]bool{}, map[string]int{}
	behind, end := context.WithCancel(ctx)
	defer end()
	steps, err := p.unroll()
	if err != nil {
		return measure{}, err
	}
	for i, s := range steps {
		if err := p.step(ctx, behind, i, s); err != nil {
			return measure{}, fmt.Errorf("operation %d (%T): %w", i, s, err)
		}
	}
	end()
	p.background.Wait()
	if err := errors.Join(p.broken...); err != nil {
		return measure{}, err
	}
	if len(p.measured) != 1 {
		return measure{}, fmt.Errorf("%d measurements in the operations, want one", len(p.measured))
	}
	return p.measured[0], nil
}

// unroll replaces each operation for several sets of pods by one operation per set. Namespaces without a name are named
// by the place in this list.
func (p *player) unroll() (steps []step, err error) {
	for _, o := range p.of.WorkloadTemplate {
		sets, ok := o.step.(*createPodSets)
		if !ok {
			steps = append(steps, o.step)
			continue
		}
		n, err := p.counted(sets.Count, sets.CountParam)
		if err != nil {
			return nil, err
		}
		for i := range n {
			one := sets.CreatePodsOp
			one.Namespace = fmt.Sprintf("%s-%d", sets.NamespacePrefix, i)
			steps = append(steps, &one)
		}
	}
	return steps, nil
}

// counted returns the number of objects of an operation. Fixed numbers are not scaled.
func (p *player) counted(n int, param string) (int, error) {
	n, err := p.number(n, param)
	if param != "" {
		n = scaled(n, p.scale)
	}
	return n, err
}

func (p *player) step(ctx, behind context.Context, i int, s step) error {
	unnamed := fmt.Sprintf("namespace-%d", i)
	switch s := s.(type) {
	case *createNodes:
		return p.createNodes(ctx, i, s)
	case *createNamespaces:
		return p.createNamespaces(ctx, s)
	case *createPods:
		return p.createPods(ctx, unnamed, s)
	case *deletePods:
		return p.deletePods(ctx, behind, s)
	case *churn:
		return p.churn(ctx, behind, unnamed, s)
	case *barrier:
		return p.barrier(ctx, s)
	case *sleep:
		return p.sleep(ctx, s)
	case *startCollecting:
		return p.start(ctx, s.Namespaces, s.LabelSelector)
	case *stopCollecting:
		return p.stop(ctx)
	case *createAny:
		return p.createAny(ctx, s)
	case *updateAny:
		return p.updateAny(ctx, s)
	}
	return errors.New("cannot be played")
}

// start begins measuring, stop ends it.
func (p *player) start(ctx context.Context, namespaces []string, labels map[string]string) (err error) {
	if p.began, err = p.look(ctx, false); err != nil {
		return err
	}
	return p.pods.start(namespaces, labels)
}

func (p *player) stop(ctx context.Context) error {
	now, err := p.look(ctx, true)
	if err != nil {
		return err
	}
	p.spent = now.less(p.began)
	m, err := p.pods.stop()
	p.measured = append(p.measured, m)
	return err
}

func (p *player) createNodes(ctx context.Context, i int, s *createNodes) error {
	n, err := p.counted(s.Count, s.CountParam)
	if err != nil {
		return err
	}
	return parallel(ctx, n, func(k int) error {
		node := baseNode(fmt.Sprintf("node-%d-", i))
		if s.NodeTemplatePath != "" {
			node = &corev1.Node{}
			if err := p.files.make(p.of.path(s.NodeTemplatePath), k, n, node); err != nil {
				return err
			}
		}
		if err := s.dress(node, k); err != nil {
			return err
		}
		return p.node(ctx, node, s.NodeAllocatableStrategy)
	})
}

// ensure creates a namespace if it does not exist.
func (p *player) ensure(ctx context.Context, name string, n *corev1.Namespace) error {
	if p.namespaces[name] {
		return nil
	}
	n.Name = name
	p.namespaces[name] = true
	return p.namespace(ctx, n)
}

func (p *player) createNamespaces(ctx context.Context, s *createNamespaces) error {
	n, err := p.counted(s.Count, s.CountParam)
	if err != nil {
		return err
	}
	for i := range n {
		space := &corev1.Namespace{}
		if s.NamespaceTemplatePath != "" {
			if err := p.files.make(p.of.path(s.NamespaceTemplatePath), i, n, space); err != nil {
				return err
			}
		}
		if err := p.ensure(ctx, fmt.Sprintf("%s-%d", s.Prefix, i), space); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) createPods(ctx context.Context, unnamed string, s *createPods) error {
	n, err := p.counted(s.Count, s.CountParam)
	if err != nil {
		return err
	}
	namespace := s.Namespace
	if namespace == "" {
		namespace = unnamed
	}
	if err := p.ensure(ctx, namespace, &corev1.Namespace{}); err != nil {
		return err
	}
	if s.CollectMetrics {
		if err := p.start(ctx, []string{namespace}, nil); err != nil {
			return err
		}
	}
	if err := parallel(ctx, n, func(i int) error { return p.createPod(ctx, namespace, s, i, n) }); err != nil {
		return err
	}
	if s.SkipWaitToCompletion {
		p.waits[namespace] += n
		return nil
	}
	if err := p.await(ctx, namespace, nil, false, n); err != nil {
		return err
	}
	if s.CollectMetrics {
		return p.stop(ctx)
	}
	return nil
}

func (p *player) await(ctx context.Context, namespace string, labels map[string]string, tried bool, n int) error {
	return p.pods.await(ctx, namespace, labels, tried, n, p.limit, p.check)
}

// createPod creates the i-th of count pods, with volume and claim if the operation has templates for them.
func (p *player) createPod(ctx context.Context, namespace string, s *createPods, i, count int) error {
	pod := basePod()
	if template := orElse(s.PodTemplatePath, p.of.DefaultPodTemplatePath); template != "" {
		pod = &corev1.Pod{}
		if err := p.files.make(p.of.path(template), i, count, pod); err != nil {
			return err
		}
	}
	if s.PersistentVolumeClaimTemplatePath != "" {
		volume, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
		if err := p.files.make(p.of.path(s.PersistentVolumeTemplatePath), i, count, volume); err != nil {
			return err
		}
		if err := p.files.make(p.of.path(s.PersistentVolumeClaimTemplatePath), i, count, claim); err != nil {
			return err
		}
		if err := p.claimed(ctx, namespace, i, volume, claim, pod); err != nil {
			return err
		}
	}
	return p.pod(ctx, namespace, pod)
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// deletePods deletes the pods that exist now, at the rate of the operation. It does not wait until they are gone.
func (p *player) deletePods(ctx, behind context.Context, s *deletePods) error {
	selector := labels.SelectorFromSet(s.LabelSelector).String()
	list, err := p.client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector,
		ResourceVersion: "0"})
	if err != nil {
		return err
	}
	do := func(ctx context.Context) error {
		return pace(ctx, len(list.Items), s.DeletePodsPerSecond, func(i int) error {
			name := list.Items[i].Name
			p.pods.end(s.Namespace, name)
			err := p.client.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if !s.SkipWaitToCompletion {
		return do(ctx)
	}
	p.beside(func() error { return do(behind) })
	return nil
}

// beside runs do in the background. It may be stopped when the workload ends.
func (p *player) beside(do func() error) {
	p.background.Go(func() {
		if err := do(); err != nil && !errors.Is(err, context.Canceled) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.broken = append(p.broken, err)
		}
	})
}

// churnEvery is the interval of operations without one.
const churnEvery = 500 * time.Millisecond

// churn creates objects of each template in the background, one at a time, up to a number; or creates and deletes them
// alternately.
func (p *player) churn(ctx, behind context.Context, unnamed string, s *churn) error {
	namespace := orElse(s.Namespace, unnamed)
	if err := p.ensure(ctx, namespace, &corev1.Namespace{}); err != nil {
		return err
	}
	every := churnEvery
	if s.IntervalMilliseconds > 0 {
		every = time.Duration(s.IntervalMilliseconds) * time.Millisecond
	}
	recreate := s.Mode == "recreate"
	if !recreate && s.Mode != "create" || recreate && s.Number == 0 {
		return fmt.Errorf("mode %q, number %d: want create, or recreate with a number", s.Mode, s.Number)
	}
	there := make([]map[int]string, len(s.TemplatePaths)) // names of the objects, by their number
	for i := range there {
		there[i] = map[int]string{}
	}
	turn := func(count int) error {
		for i, path := range s.TemplatePaths {
			slot := count
			if recreate {
				slot %= s.Number
			}
			object := &unstructured.Unstructured{}
			if err := p.files.make(p.of.path(path), count, s.Number, object); err != nil {
				return err
			}
			if name := there[i][slot]; name != "" {
				delete(there[i], slot)
				p.pods.end(namespace, name)
				client, err := p.at(behind, namespace, object)
				if err != nil {
					return err
				}
				if err := client.Delete(behind, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
				continue
			}
			name, err := p.any(behind, namespace, object)
			if err != nil {
				return err
			}
			if recreate {
				there[i][slot] = name
			}
		}
		return nil
	}
	p.beside(func() error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for count := 0; recreate || s.Number == 0 || count < s.Number; count++ {
			select {
			case <-tick.C:
			case <-behind.Done():
				return nil
			}
			if err := turn(count); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// barrier waits for the pods of some namespaces, or of all, that were not waited for: until they are bound, or until
// their scheduling was attempted.
func (p *player) barrier(ctx context.Context, s *barrier) error {
	names := s.Namespaces
	if len(names) == 0 {
		for n := range p.waits {
			names = append(names, n)
		}
	}
	tried := s.StageRequirement == "Attempted"
	for _, n := range names {
		if err := p.await(ctx, n, s.LabelSelector, tried, p.waits[n]); err != nil {
			return err
		}
		if !tried {
			delete(p.waits, n)
		}
	}
	return nil
}

func (p *player) sleep(ctx context.Context, s *sleep) error {
	d := s.Duration.Duration
	if s.DurationParam != "" {
		text, _ := p.Params[s.DurationParam[1:]].(string)
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("parameter %s: %w", s.DurationParam, err)
		}
	}
	return record.Pause(ctx, d)
}

// optional is counted for operations that create one object by default.
func (p *player) optional(n *int, param string) (int, error) {
	if n == nil && param == "" {
		return 1, nil
	}
	if n == nil {
		n = new(int)
	}
	return p.counted(*n, param)
}

func (p *player) createAny(ctx context.Context, s *createAny) error {
	n, err := p.optional(s.Count, s.CountParam)
	if err != nil {
		return err
	}
	if s.Namespace != "" {
		if err := p.ensure(ctx, s.Namespace, &corev1.Namespace{}); err != nil {
			return err
		}
	}
	for i := range n {
		object := &unstructured.Unstructured{}
		if err := p.files.make(p.of.path(s.TemplatePath), i, n, object); err != nil {
			return err
		}
		if _, err := p.any(ctx, s.Namespace, object); err != nil {
			return err
		}
	}
	return nil
}

// updateAny replaces objects and their statuses by the template's.
func (p *player) updateAny(ctx context.Context, s *updateAny) error {
	n, err := p.optional(s.Count, s.CountParam)
	if err != nil {
		return err
	}
	return pace(ctx, n, s.UpdatePerSecond, func(i int) error {
		object := &unstructured.Unstructured{}
		if err := p.files.make(p.of.path(s.TemplatePath), i, n, object); err != nil {
			return err
		}
		client, err := p.at(ctx, s.Namespace, object)
		if err != nil {
			return err
		}
		options := metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict}
		if _, err := client.Update(ctx, object.DeepCopy(), options, s.Subresources...); err != nil {
			return err
		}
		_, err = client.UpdateStatus(ctx, object, options)
		return err
	})
}

// pace calls do for 0 to n-1, perSecond times per second; 0: without pauses.
func pace(ctx context.Context, n, perSecond int, do func(int) error) error {
	tick := make(<-chan time.Time)
	if perSecond > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	for i := range n {
		if perSecond > 0 {
			select {
			case <-tick:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls do for 0 to n-1, creators calls at a time, and returns the first error.
func parallel(ctx context.Context, n int, do func(int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make(chan int)
	var group sync.WaitGroup
	for range min(creators, n) {
		group.Go(func() {
			for i := range turns {
				if err := do(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case turns <- i:
		case <-ctx.Done():
		}
	}
	close(turns)
	group.Wait()
	return context.Cause(ctx)
}
