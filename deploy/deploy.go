// Package deploy has the manifests for clusters that `plimsoll up` did not start. `up` installs them too: they are
// embedded, so that there is one copy. The package contains no code.
package deploy

import _ "embed"

// NodeResourceTopology is the definition of that resource and the roles to read and write it: YAML documents.
//
//go:embed noderesourcetopology.yaml
var NodeResourceTopology string

// Lifecycle is the roles of the lifecycle controller: YAML documents.
//
//go:embed rbac-lifecycle.yaml
var Lifecycle string

// Fleet is the roles of hollow nodes: YAML documents.
//
//go:embed rbac-fleet.yaml
var Fleet string

// Storage is the CSI driver's object, the default StorageClass, and the roles of plimsoll-storage: YAML documents.
//
//go:embed storage.yaml
var Storage string

// Explain is the role of those who ask `plimsoll explain`: a YAML document.
//
//go:embed rbac-explain.yaml
var Explain string
