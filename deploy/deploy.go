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
//go:embed lifecycle/rbac.yaml
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

// Console is the role of those who open `plimsoll console`: a YAML document.
//
//go:embed rbac-console.yaml
var Console string

// Shadow is the role of `plimsoll shadow`, which only reads: a YAML document.
//
//go:embed rbac-shadow.yaml
var Shadow string

// Top is the role of those who look at `plimsoll top`: a YAML document.
//
//go:embed rbac-top.yaml
var Top string
