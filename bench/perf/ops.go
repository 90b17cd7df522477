package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An op is one operation of a case.
type op struct{ step }

// A step is the content of an op. Its fields have upstream's names.
type step interface {
	// templates returns the files with the objects that it creates or changes.
	templates() []string
	// params returns the parameters that it reads.
	params() []string
}

type createNodes struct {
	Opcode                   string
	Count                    int
	CountParam               string
	NodeTemplatePath         string
	NodeAllocatableStrategy  *nodeAllocatable
	LabelNodePrepareStrategy *nodeLabel
	UniqueNodeLabelStrategy  *nodeUniqueLabel
}

// nodeAllocatable adds to a node's allocatable, and creates its CSINode.
type nodeAllocatable struct {
	NodeAllocatable    map[string]string
	CsiNodeAllocatable map[string]*storagev1.VolumeNodeResources
	MigratedPlugins    []string
}

// nodeLabel labels nodes with values in rotation.
type nodeLabel struct {
	LabelKey    string
	LabelValues []string
}

// nodeUniqueLabel labels each node with a different value.
type nodeUniqueLabel struct{ LabelKey string }

type createNamespaces struct {
	Opcode                string
	Prefix                string
	Count                 int
	CountParam            string
	NamespaceTemplatePath string
}

type createPods struct {
	Opcode                            string
	Count                             int
	CountParam                        string
	SteadyState                       bool
	SteadyStateParam                  string
	Duration                          metav1.Duration
	DurationParam                     string
	CollectMetrics                    bool
	Namespace                         string
	PodTemplatePath                   string
	SkipWaitToCompletion              bool
	PersistentVolumeTemplatePath      string
	PersistentVolumeClaimTemplatePath string
}

type createPodSets struct {
	Opcode          string
	Count           int
	CountParam      string
	NamespacePrefix string
	CreatePodsOp    createPods
}

type deletePods struct {
	Opcode               string
	Namespace            string
	LabelSelector        map[string]string
	SkipWaitToCompletion bool
	DeletePodsPerSecond  int
}

type churn struct {
	Opcode               string
	Mode                 string
	Number               int
	IntervalMilliseconds int64
	Namespace            string
	TemplatePaths        []string
}

type barrier struct {
	Opcode           string
	Namespaces       []string
	LabelSelector    map[string]string
	StageRequirement string
}

type sleep struct {
	Opcode        string
	Duration      metav1.Duration
	DurationParam string
}

type startCollecting struct {
	Opcode        string
	Name          string
	Namespaces    []string
	LabelSelector map[string]string
}

type stopCollecting struct{ Opcode string }

type createAny struct {
	Opcode       string
	Namespace    string
	TemplatePath string
	Count        *int
	CountParam   string
}

type updateAny struct {
	Opcode          string
	Namespace       string
	TemplatePath    string
	Count           *int
	CountParam      string
	UpdatePerSecond int
	Subresources    []string
}

// claimsOp is an operation on resource claims. Its fields are not read, because no workload with it is run.
type claimsOp struct{ opcode string }

// newStep returns an empty step for an opcode; nil: the opcode is unknown.
func newStep(opcode string) step {
	switch opcode {
	case "createNodes":
		return &createNodes{}
	case "createNamespaces":
		return &createNamespaces{}
	case "createPods":
		return &createPods{}
	case "createPodSets":
		return &createPodSets{}
	case "deletePods":
		return &deletePods{}
	case "churn":
		return &churn{}
	case "barrier":
		return &barrier{}
	case "sleep":
		return &sleep{}
	case "startCollectingMetrics":
		return &startCollecting{}
	case "stopCollectingMetrics":
		return &stopCollecting{}
	case "createAny":
		return &createAny{}
	case "updateAny":
		return &updateAny{}
	case "allocResourceClaims", "createResourceClaims", "createResourceDriver":
		return &claimsOp{opcode: opcode}
	}
	return nil
}

// UnmarshalJSON decodes the step that the opcode names. An unknown field is an error.
func (o *op) UnmarshalJSON(text []byte) error {
	named := struct{ Opcode string }{}
	if err := json.Unmarshal(text, &named); err != nil {
		return err
	}
	s := newStep(named.Opcode)
	if s == nil {
		return fmt.Errorf("opcode %q: not known", named.Opcode)
	}
	o.step = s
	if _, ok := s.(*claimsOp); ok {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return fmt.Errorf("opcode %q: %w", named.Opcode, err)
	}
	return nil
}

// named returns all strings that are not empty.
func named(all ...string) (out []string) {
	for _, s := range all {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

func (s *createNodes) templates() []string      { return named(s.NodeTemplatePath) }
func (s *createNamespaces) templates() []string { return named(s.NamespaceTemplatePath) }
func (s *createPods) templates() []string {
	return named(s.PodTemplatePath, s.PersistentVolumeTemplatePath, s.PersistentVolumeClaimTemplatePath)
}
func (s *createPodSets) templates() []string { return s.CreatePodsOp.templates() }
func (*deletePods) templates() []string      { return nil }
func (s *churn) templates() []string         { return s.TemplatePaths }
func (*barrier) templates() []string         { return nil }
func (*sleep) templates() []string           { return nil }
func (*startCollecting) templates() []string { return nil }
func (*stopCollecting) templates() []string  { return nil }
func (s *createAny) templates() []string     { return named(s.TemplatePath) }
func (s *updateAny) templates() []string     { return named(s.TemplatePath) }
func (*claimsOp) templates() []string        { return nil }

func (s *createNodes) params() []string      { return named(s.CountParam) }
func (s *createNamespaces) params() []string { return named(s.CountParam) }
func (s *createPods) params() []string {
	return named(s.CountParam, s.SteadyStateParam, s.DurationParam)
}
func (s *createPodSets) params() []string {
	return append(named(s.CountParam), s.CreatePodsOp.params()...)
}
func (*deletePods) params() []string      { return nil }
func (*churn) params() []string           { return nil }
func (*barrier) params() []string         { return nil }
func (s *sleep) params() []string         { return named(s.DurationParam) }
func (*startCollecting) params() []string { return nil }
func (*stopCollecting) params() []string  { return nil }
func (s *createAny) params() []string     { return named(s.CountParam) }
func (s *updateAny) params() []string     { return named(s.CountParam) }
func (*claimsOp) params() []string        { return nil }
