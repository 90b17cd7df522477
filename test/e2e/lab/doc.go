// Package lab tests Plimsoll in the lab's guests, on machines of other kinds than this one: first the lab itself, then
// what our programs find and do there. Every test boots its own guest. None needs root once the image is built.
//
//	make lab
//
// `make test-e2e` runs its short tests; the build tag lab adds the long ones.
package lab
