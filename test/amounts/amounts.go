// Package amounts reads the resources of pods from short texts, for tests: "cpu=1 memory=64Mi".
//
// An empty text is a nil list, as in an object that does not set the field. A text that cannot be read panics: it is
// written in a test. Tests that need other forms, for example of devices, have their own.
package amounts

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// List reads NAME=QUANTITY, several with blanks in between.
func List(text string) corev1.ResourceList {
	var list corev1.ResourceList
	for _, word := range strings.Fields(text) {
		name, value, found := strings.Cut(word, "=")
		if !found {
			panic(fmt.Sprintf("amounts %q: %q: want NAME=QUANTITY", text, word))
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return list
}

// Of returns the resources of a container with these requests and limits.
func Of(requests, limits string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: List(requests), Limits: List(limits)}
}
