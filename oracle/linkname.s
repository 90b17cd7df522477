// Empty: with an assembly file in the package, the compiler accepts the declarations without a body that reach upstream's
// unexported functions (go:linkname in conversion_test.go and allocatable_test.go).
