package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
)

func newTokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Create, list and delete the tokens by which machines join the cluster",
		Long: `Create, list and delete bootstrap tokens of this machine's cluster. Until a token expires or is deleted,
everybody who has it can make a machine a node.`,
		Example: `  plimsoll token create
  plimsoll token list`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(newTokenCreateCommand(), newTokenListCommand(), newTokenDeleteCommand())
	return c
}

func newTokenCreateCommand() *cobra.Command {
	var o cluster.Options
	var life time.Duration
	var description, output string
	var server bool
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a token, and print the command that joins a machine",
		Long: `Create a token, and print the whole command that joins a machine with it. Any number of machines can use it
until it expires.

With --server the machine becomes a further server of the cluster, with a control plane, which needs "plimsoll up
--etcd-servers". What the servers share, the keys of the cluster's authorities among it, is then in the token's Secret,
encrypted with the key that the command has as --certificate-key: whoever has the command can be the cluster.`,
		Example: `  plimsoll token create --ttl 1h
  plimsoll token create --server
  plimsoll token create -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "command" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want command or json", output)}
			}
			if life < 0 {
				return usageError{fmt.Errorf("--ttl %s: want 0 or more", life)}
			}
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			invite := cluster.Invite
			if server {
				invite = cluster.InviteServer
				if !c.Flags().Changed("ttl") {
					life = bootstrap.ServerLife
				}
			}
			i, err := invite(c.Context(), kept, life, description)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, i)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), i.Command())
			return err
		},
	}
	instanceFlags(c, &o)
	c.Flags().DurationVar(&life, "ttl", bootstrap.DefaultLife,
		"how long the token is valid; 0: until it is deleted (with --server: 2h unless given)")
	c.Flags().BoolVar(&server, "server", false, "a token by which machines become further servers of the cluster")
	c.Flags().StringVar(&description, "description", "", "what the token is for, shown by token list")
	c.Flags().StringVarP(&output, "output", "o", "command", "command or json")
	return c
}

func newTokenListCommand() *cobra.Command {
	var o cluster.Options
	var output string
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the tokens, without their secret parts",
		Long: `List the bootstrap tokens of this machine's cluster: how long they are valid, and as what machines can join
with them. Their secret parts are not shown.`,
		Example: `  plimsoll token list`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want table or json", output)}
			}
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			client, err := cluster.TokenClient(kept)
			if err != nil {
				return err
			}
			tokens, err := bootstrap.ListTokens(c.Context(), client)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, tokens)
			}
			return printTokens(c.OutOrStdout(), tokens, time.Now())
		},
	}
	instanceFlags(c, &o)
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func printTokens(w io.Writer, tokens []bootstrap.Token, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "TOKEN\tEXPIRES IN\tJOINS\tDESCRIPTION") // JOINS: as what
	for _, token := range tokens {
		left := "never"
		if !token.Expires.IsZero() {
			left = max(0, token.Expires.Sub(now)).Truncate(time.Second).String()
		}
		joins := "nothing"
		switch {
		case token.Joins && token.Servers:
			joins = "servers"
		case token.Joins:
			joins = "nodes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", token.ID, left, joins, token.Description)
	}
	return t.Flush()
}

func newTokenDeleteCommand() *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{
		Use:     "delete TOKEN",
		Aliases: []string{"rm"},
		Short:   "Delete a token; nodes that joined with it stay",
		Long: `Delete a bootstrap token, given by its id or as a whole. No machine can join with it any more; nodes that
joined with it have certificates of their own, and stay.`,
		Example: `  plimsoll token delete abcdef`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			client, err := cluster.TokenClient(kept)
			if err != nil {
				return err
			}
			return bootstrap.DeleteToken(c.Context(), client, args[0])
		},
	}
	instanceFlags(c, &o)
	return c
}
