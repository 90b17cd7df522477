// Package deploy is the manifests for clusters that `plimsoll up` did not make. It installs them too: they are
// embedded, so that there is one copy. It has no code and decides nothing.
package deploy

import _ "embed"

// NodeResourceTopology is the definition of that object, and who may read and write it: YAML documents.
//
//go:embed noderesourcetopology.yaml
var NodeResourceTopology string

// Lifecycle is what the lifecycle controller may do: YAML documents.
//
//go:embed rbac-lifecycle.yaml
var Lifecycle string

// Fleet is what hollow nodes may do: YAML documents.
//
//go:embed rbac-fleet.yaml
var Fleet string
