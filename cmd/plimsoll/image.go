package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

func newImageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Load, list and remove images on this machine's nodes",
		Long: `Load images from archives into the container runtime of each of this machine's nodes, list their images,
remove some. A pod uses a loaded image without a pull unless its imagePullPolicy is Always.`,
		Example: `  plimsoll image load app.tar
  plimsoll image ls`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(newImageLoadCommand(), newImageListCommand(), newImageRemoveCommand())
	return c
}

func newImageLoadCommand() *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{
		Use:   "load FILE...",
		Short: "Load the images of archives",
		Long: `Load all images of each archive into the container runtime of each node, under their names in the archive. An
archive is what docker save, podman save, buildah push or skopeo copy writes, compressed with gzip or not; - is
standard input. Images that the runtime has under the same names are replaced; running pods are not changed.`,
		Example: `  plimsoll image load app.tar
  docker save localhost/app:1 | plimsoll image load -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			for _, path := range args {
				if err := loadImages(c, kept, path); err != nil {
					return err
				}
			}
			return nil
		},
	}
	instanceFlags(c, &o)
	return c
}

func loadImages(c *cobra.Command, o cluster.Options, path string) (err error) {
	if path == "-" {
		defer func() {
			if err != nil {
				err = fmt.Errorf("standard input: %w", err)
			}
		}()
		path, err = spool(c.InOrStdin(), o.StateDir)
		if err != nil {
			return fmt.Errorf("copy it to %s: %w", o.StateDir, err)
		}
		defer func() { err = errors.Join(err, os.Remove(path)) }()
	}
	images, err := cluster.LoadImages(c.Context(), o, path)
	if err != nil {
		return err
	}
	for _, image := range images {
		if _, err := fmt.Fprintf(c.OutOrStdout(), "loaded %s (%s)\n", strings.Join(image.Names, ", "), image.ID); err != nil {
			return err
		}
	}
	return nil
}

// spool copies in to a new file in dir, because an archive is read twice. Only its owner can read the file.
func spool(in io.Reader, dir string) (path string, err error) {
	file, err := os.CreateTemp(dir, "image-*.tar")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, in)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

func newImageListCommand() *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images that the runtime has",
		Long: `List the images of this machine's container runtimes, with one line for each name: pulled images, loaded
images, and our own. It changes nothing. Sizes are as the runtime counts them: containerd counts compressed layers.`,
		Example: `  plimsoll image ls
  plimsoll image ls -o json`,
		Args: cobra.NoArgs,
	}
	instanceFlags(c, &o)
	output := addOutputFlag(c, outputTable, outputJSON)
	c.RunE = func(c *cobra.Command, _ []string) error {
		kept, err := cluster.Load(o)
		if err != nil {
			return err
		}
		images, err := cluster.Images(c.Context(), kept)
		if err != nil {
			return err
		}
		if output.chosen == outputJSON {
			enc := json.NewEncoder(c.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(images)
		}
		t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, "NAME\tSIZE\tID")
		for _, image := range images {
			for _, name := range image.Names {
				fmt.Fprintf(t, "%s\t%.1fMi\t%s\n", name, float64(image.Bytes)/(1<<20), image.ID)
			}
		}
		return t.Flush()
	}
	return c
}

func newImageRemoveCommand() *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images, by name or id",
		Long: `Remove images with all their names. An image is not removed if a container uses it, or if it is that of the
pause container. The agent itself removes unused images when the disk is short of space.`,
		Example: `  plimsoll image rm localhost/app:1`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			var failed []error
			for _, name := range args {
				image, err := cluster.RemoveImage(c.Context(), kept, name)
				if err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintf(c.OutOrStdout(), "removed %s (%s)\n", strings.Join(image.Names, ", "), image.ID)
			}
			return errors.Join(failed...)
		},
	}
	instanceFlags(c, &o)
	return c
}
