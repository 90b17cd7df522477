// Command plimsoll-hostport is the CNI plugin that maps host ports to pods, for the runtime that `plimsoll up` starts.
// It is a program of its own and not a verb of plimsoll, because it is started for every pod and must be small.
package main

import (
	"os"

	"github.com/plimsoll-dev/plimsoll/internal/host/cni"
)

func main() { os.Exit(cni.Run(os.Getenv, os.Stdin, os.Stdout)) }
