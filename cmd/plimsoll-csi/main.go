// Command plimsoll-csi is a CSI driver for volumes on the machine that it runs on. `plimsoll up` runs one on each node;
// it works beside any kubelet. It is a program of its own and not a verb of plimsoll, so that it can be restarted,
// replaced and debugged like any other driver, and contains no code of the other parts.
//
//	plimsoll-csi --node-name vm --dir /var/lib/volumes --endpoint /run/csi.sock \
//	  --registration-dir /var/lib/kubelet/plugins_registry
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/csi"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// Exit codes, as in the other programs of Plimsoll.
const (
	exitError = 1
	exitUsage = 2
)

// reservedDefaultPct is how much of the disk volumes leave free, in percent. It is the kubelet's default eviction
// threshold imagefs.available (15%), so that full volumes alone do not cause evictions.
const reservedDefaultPct = 15

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	var usage *usageError
	switch err := command().ExecuteContext(ctx); {
	case err == nil || errors.Is(err, context.Canceled):
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "plimsoll-csi:", err)
		os.Exit(exitUsage)
	default:
		fmt.Fprintln(os.Stderr, "plimsoll-csi:", err)
		os.Exit(exitError)
	}
}

type usageError struct{ error }

func command() *cobra.Command {
	o := csi.Options{Version: version.Plimsoll()}
	c := &cobra.Command{
		Use:           "plimsoll-csi",
		Short:         "Serve volumes of this machine by CSI",
		Args:          func(_ *cobra.Command, args []string) error { return noArguments(args) },
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := csi.New(o)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.Serve(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&o.Store.Dir, "dir", "", "directory that keeps the volumes and snapshots")
	f.StringVar(&o.Store.Node, "node-name", "", "name of this node, as its Node object has it")
	f.StringVar(&o.Endpoint, "endpoint", "", "path of the socket that CSI is served on")
	f.StringVar(
		&o.Registration, "registration-dir", "",
		"the kubelet's directory plugins_registry, to register there; empty: register nowhere")
	f.IntVar(&o.Store.Reserved, "reserved-percent", reservedDefaultPct, "percent of the disk that volumes leave free")
	f.Int64Var(&o.VolumesMax, "volumes-max", 0,
		"how many volumes the scheduler lets pods of this node use; 0: as many as there is room for")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	return c
}

func noArguments(args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
