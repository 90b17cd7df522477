package main

import (
	"context"
	"flag"
	"strings"
)

// runAll runs verbs one after another: workload run "write /data/x hello" "sleep 1s" "exit --code 3".
func runAll(ctx context.Context, p process, _ *flag.FlagSet, args []string) error {
	if len(args) == 0 {
		return usagef("want at least one quoted verb")
	}
	for _, line := range args {
		fields, err := split(line)
		if err != nil {
			return err
		}
		if err := do(ctx, p, fields[0], fields[1:]); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// split splits a line at blanks. Single and double quotes protect blanks; there is no other syntax.
func split(line string) ([]string, error) {
	var fields []string
	var field strings.Builder
	var quote rune
	open := false // a field has begun; it may be an empty quoted one
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			field.WriteRune(r)
		case r == '\'' || r == '"':
			quote, open = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if open {
				fields = append(fields, field.String())
			}
			field.Reset()
			open = false
		default:
			field.WriteRune(r)
			open = true
		}
	}
	if quote != 0 {
		return nil, usagef("%q: quote %c is not closed", line, quote)
	}
	if open {
		fields = append(fields, field.String())
	}
	if len(fields) == 0 {
		return nil, usagef("%q: no verb in it", line)
	}
	return fields, nil
}
