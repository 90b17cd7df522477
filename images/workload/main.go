// Command workload is the program in Plimsoll's workload image: one static binary that behaves like the pods of a node.
// It uses CPU, holds and grows memory, fills disks, opens ports, serves HTTP, fails, forks and ignores signals, on
// request and in given amounts. It can be a hostile tenant (bomb, churn, deep, odd, rude and similar verbs). It has the
// few file verbs (cat, ls, write, tar, test) that volume tests, `kubectl exec` and `kubectl cp` need in an image
// without a shell.
//
// One file contains one verb or a group of related verbs. The name of the program also selects a verb, so that /bin/tar
// and /bin/cat in the image are links to it. It uses only the standard library.
//
// Every verb ends at SIGTERM and SIGINT with exit code 0 unless its text says otherwise: a workload that was stopped
// has not failed. Exit codes: 0 done, 1 failed, 2 bad usage, or the code given to the exit verb.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"text/tabwriter"
)

// A process is the standard streams of a verb; tests pass their own.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (p process) printf(format string, args ...any) { fmt.Fprintf(p.stdout, format, args...) }

// A verb is one thing that the program can do.
type verb struct {
	usage   string // arguments, as shown after the name
	summary string
	run     func(ctx context.Context, p process, flags *flag.FlagSet, args []string) error
}

var verbs map[string]verb

func init() {
	verbs = map[string]verb{
		"bomb":  {"", "fork children that fork", bomb},
		"cat":   {"FILE...", "print files", cat},
		"churn": {"DIR", "make, rename and remove directories without rest", churn},
		"cpu":   {"--milli N [--for D]", "burn N thousandths of a CPU", burnCPU},
		"deep":  {"[--depth N] [--wide N] [--size N] DIR", "make directories deeper than a path is long", deep},
		"dial":  {"[--count N] HOST:PORT", "open connections and keep them", dial},
		"disk":  {"--path FILE --size N [--rate N/s] [--files N]", "write files and keep them", fillDisk},
		"echo":  {"--port N", "send every TCP byte back", echo},
		"env":   {"[NAME...]", "print the environment", printEnv},
		"exit":  {"[--code N] [--after D]", "exit with a code after a delay", exit},
		"flood": {"[--bytes N] [--width N] [--rate N/s]", "print bytes, in huge lines or none", flood},
		"fork":  {"[--children N] [--zombies N]", "start child processes", fork},
		"get": {"URL [--timeout D] [--every D] [--ca-file FILE] [--token-file FILE]",
			"fetch a URL and print its body", get},
		"http": {"[--port N] [--fail-after D] [--ready-after D]",
			"serve HTTP: / /env /file?path= /healthz /readyz /exit?code=", serveHTTP},
		"ignore-term": {"[--for D]", "refuse to stop at SIGTERM", ignoreTerm},
		"link":        {"TARGET NAME", "make a symbolic link in the place of a file", link},
		"listen":      {"[--tcp N,N] [--udp N,N]", "open ports", listen},
		"log":         {"[--lines N] [--rate N] [--size N] [--stderr-every N]", "print numbered lines", printLog},
		"ls":          {"[-l] [-R] [PATH...]", "list files", list},
		"memory":      {"[--hold N] [--grow N/s] [--max N] [--for D]", "hold and grow resident memory", holdMemory},
		"mode":        {"MODE FILE...", "set the mode of files, in octal", mode},
		"named":       {"NAME VERB [ARG...]", "run a verb as a process of that name", named},
		"odd":         {"DIR", "fill a directory with FIFOs, devices, links and odd names", odd},
		"rude": {"[--port N]",
			"answer HTTP as no server should: /hang /drip /endless /headers /slow /early /loop /away /garbage /reset", rude},
		"run":      {"\"VERB ARG...\" ...", "run verbs one after another, ending at the first that fails", runAll},
		"segfault": {"", "end by a bad address", segfault},
		"sleep":    {"D|infinity", "do nothing", sleep},
		"sparse":   {"--size N FILE...", "give files a size without writing to them", sparse},
		"stdin":    {"", "copy stdin to stdout", copyStdin},
		"tar":      {"cf|xf ...", "pack and unpack on stdin and stdout, as kubectl cp asks for it", tarVerb},
		"test":     {"-d|-e|-f|-s PATH", "check a path", testPath},
		"unlinked": {"--path FILE --size N", "write a file, delete it and keep it open", unlinked},
		"write":    {"[--append] FILE TEXT...", "write text to a file", write},
	}
}

// exitCode is an error that only stands for an exit code.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError marks an error that the caller caused.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := process{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	err := dispatch(ctx, p, os.Args)
	stop()
	os.Exit(code(p, err))
}

// dispatch selects the verb by the name of the program, else by the first argument.
func dispatch(ctx context.Context, p process, argv []string) error {
	if name := filepath.Base(argv[0]); name != "workload" {
		if _, ok := verbs[name]; ok {
			return do(ctx, p, name, argv[1:])
		}
	}
	if len(argv) < 2 || argv[1] == "--help" || argv[1] == "-h" || argv[1] == "help" {
		printUsage(p.stdout)
		return nil
	}
	return do(ctx, p, argv[1], argv[2:])
}

// do runs one verb. A verb that was stopped has succeeded, whatever it was doing.
func do(ctx context.Context, p process, name string, args []string) error {
	v, ok := verbs[name]
	if !ok {
		return usagef("%q: no such verb (workload --help lists them)", name)
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	flags.Usage = func() {
		fmt.Fprintf(p.stderr, "usage: workload %s %s\n%s\n", name, v.usage, v.summary)
		flags.PrintDefaults()
	}
	err := v.run(ctx, p, flags, args)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil
	case errors.As(err, new(exitCode)):
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

func code(p process, err error) int {
	var wish exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wish):
		return int(wish)
	}
	fmt.Fprintln(p.stderr, "workload:", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// parse reads flags anywhere among the arguments and returns the other arguments.
func parse(flags *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usageError{err}
		}
		if args = flags.Args(); len(args) == 0 {
			return rest, nil
		}
		rest, args = append(rest, args[0]), args[1:]
	}
}

// noArgs is parse for verbs that take flags only.
func noArgs(flags *flag.FlagSet, args []string) error {
	rest, err := parse(flags, args)
	if err == nil && len(rest) > 0 {
		return usagef("unexpected argument %q", rest[0])
	}
	return err
}

func printUsage(w io.Writer) {
	fmt.Fprintln(w, "usage: workload VERB [ARG...]")
	names := make([]string, 0, len(verbs))
	for name := range verbs {
		names = append(names, name)
	}
	sort.Strings(names)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range names {
		fmt.Fprintf(table, "  %s\t%s\n", strings.TrimSpace(name+" "+verbs[name].usage), verbs[name].summary)
	}
	table.Flush()
}
