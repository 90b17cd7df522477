package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// verbs are the verbs of plimsoll that take the places of upstream's programs, by the names of these.
var verbs = map[string]string{"kube-scheduler": "scheduler", "kubelet": "agent"}

// asUpstream returns the arguments of a program that was started as name. Under the name of an upstream program it adds
// the verb.
func asUpstream(name string, args []string) []string {
	if verb := verbs[filepath.Base(name)]; verb != "" {
		return append([]string{verb}, args...)
	}
	return args
}

// versionFlag is a flag that upstream's programs have.
const versionFlag = "version"

// addVersionFlag adds the flag with which tools such as kubeadm ask a program for its version.
func addVersionFlag(fs *pflag.FlagSet) {
	fs.String(versionFlag, "false",
		"print the version of Kubernetes that this is compatible with, and end; `raw`: its parts")
	fs.Lookup(versionFlag).NoOptDefVal = "true"
}

// printVersion prints the version, if the flag asks for it, as upstream's programs print theirs.
func printVersion(c *cobra.Command) (said bool, err error) {
	text := c.Flags().Lookup(versionFlag).Value.String()
	if text == "raw" {
		parts := strings.Split(strings.TrimPrefix(version.Kubernetes, "v"), ".")
		_, err := fmt.Fprintf(c.OutOrStdout(), "%#v\n", apiversion.Info{
			Major:      parts[0],
			Minor:      parts[1],
			GitVersion: version.Kubernetes,
			GoVersion:  runtime.Version(),
			Compiler:   runtime.Compiler,
			Platform:   runtime.GOOS + "/" + runtime.GOARCH,
		})
		return true, err
	}
	switch on, err := strconv.ParseBool(text); {
	case err != nil:
		return true, usageError{fmt.Errorf("--version=%.200s: want true, false or raw: the version that is reported "+
			"cannot be changed", text)}
	case !on:
		return false, nil
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "Kubernetes %s\n", version.Kubernetes)
	return true, err
}

// verboseDebug is the -v from which every decision is logged: upstream's debug level.
const verboseDebug = 4

// logLevel is the level of a log in JSON. That of the other is kept by package slog.
var logLevel slog.LevelVar

// setVerbosity sets the log's level, at any time.
func setVerbosity(verbosity int) {
	level := slog.LevelInfo
	if verbosity >= verboseDebug {
		level = slog.LevelDebug
	}
	slog.SetLogLoggerLevel(level)
	logLevel.Set(level)
}

// setLog has the log written in a format of upstream's flags, text or json, with the level of a verbosity.
func setLog(format string, verbosity int) error {
	setVerbosity(verbosity)
	switch format {
	case "text":
	case "json":
		slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: &logLevel})))
		kube.LogToSlog()
	default:
		return fmt.Errorf("%.200q: want text or json", format)
	}
	return nil
}
